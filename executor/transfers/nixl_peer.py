"""Reads of another process's memory by NIXL over UCX: RDMA where a card can, GPUDirect where it reaches a GPU's memory,
else shared memory or TCP, as UCX finds.

Whoever owns memory offers it and hands out its metadata; whoever reads connects with that and reads when it likes, and
the owner's program takes no part. Memory of a GPU is offered by the same call; that is not proved on a device.
"""

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ConfigError, EngineNotReady, Unavailable

MODULE = "nixl._api"
_POLL_S = 0.0002


@dataclass(frozen=True, slots=True)
class Range:
    """`size_bytes` from `address` on: of the host, or of CUDA device `gpu`."""

    address: int
    size_bytes: int
    gpu: int | None = None

    @property
    def kind(self) -> str:
        """As NIXL names it."""
        return "DRAM" if self.gpu is None else "VRAM"

    @property
    def description(self) -> tuple[int, int, int]:
        return self.address, self.size_bytes, self.gpu or 0


class NixlPeer:
    """One end. From one thread; use as a context manager."""

    def __init__(self, name: str) -> None:
        """Raises ConfigError without the package, EngineNotReady where UCX does not start."""
        try:
            api = importlib.import_module(MODULE)
        except ImportError as error:
            raise ConfigError(f"transfers want the package nixl ({error}); install headrace[executor-nixl]") from error
        try:
            self._agent: Any = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
        except Exception as error:  # the library's own, of several kinds
            raise EngineNotReady(f"NIXL does not start: {' '.join(str(error).split())}") from error
        self._remotes: list[str] = []

    @contextmanager
    def offered(self, memory: Range) -> Iterator[bytes]:
        """The memory may be read or filled by transfers within the block, which yields what a peer connects with; both
        ends of a transfer are offered. Raises EngineNotReady where it cannot be registered."""
        description = (*memory.description, "")
        try:
            registered = self._agent.register_memory([description], memory.kind)
        except Exception as error:
            raise EngineNotReady(f"NIXL cannot register {memory}: {' '.join(str(error).split())}") from error
        try:
            yield self._agent.get_agent_metadata()
        finally:
            self._agent.deregister_memory(registered)

    def connect(self, metadata: bytes) -> str:
        """The other end's name. Raises Unavailable where it cannot be reached, or says nothing that is known."""
        try:
            name = self._agent.add_remote_agent(metadata)
        except Exception as error:
            raise Unavailable(f"NIXL cannot connect: {' '.join(str(error).split())}") from error
        self._remotes.append(name.decode() if isinstance(name, bytes) else name)
        return self._remotes[-1]

    def read(self, remote: str, source: Range, target: Range, timeout_s: float) -> float:
        """Copies the remote's `source` into `target` here, both offered and of one size; the seconds that took.

        Raises ValueError for other sizes, Unavailable where it fails or takes longer than `timeout_s`.
        """
        if source.size_bytes != target.size_bytes:
            raise ValueError(f"{source.size_bytes} bytes do not fit {target.size_bytes}")
        here = self._agent.get_xfer_descs([target.description], target.kind)
        there = self._agent.get_xfer_descs([source.description], source.kind)
        begun = time.monotonic()
        try:
            transfer = self._agent.initialize_xfer("READ", here, there, remote, b"")
            try:
                state = self._agent.transfer(transfer)
                while state == "PROC":
                    if time.monotonic() - begun > timeout_s:
                        raise Unavailable(f"a transfer of {source.size_bytes} bytes is not done after {timeout_s:g} s")
                    time.sleep(_POLL_S)
                    state = self._agent.check_xfer_state(transfer)
            finally:
                self._agent.release_xfer_handle(transfer)
        except Unavailable:
            raise
        except Exception as error:
            raise Unavailable(f"a transfer from {remote} failed: {' '.join(str(error).split())}") from error
        if state != "DONE":
            raise Unavailable(f"a transfer from {remote} ended as {state}")
        return time.monotonic() - begun

    def close(self) -> None:
        """Harmless when repeated."""
        remotes, self._remotes = self._remotes, []
        for remote in remotes:
            self._agent.remove_remote_agent(remote)

    def __enter__(self) -> "NixlPeer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
