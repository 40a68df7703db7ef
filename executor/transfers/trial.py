"""A transfer between two processes of this machine: whether NIXL works here, and how fast. Both ends are real.

The process that owns the memory runs this file: it prints where its bytes are, and waits until its input ends.
"""

import base64
import ctypes
import json
import mmap
import subprocess
import sys
from dataclasses import dataclass

from headrace.core.errors import Unavailable
from headrace.executor.transfers.nixl_peer import NixlPeer, Range

START_S, TRANSFER_S = 60.0, 30.0
_OWNER = "headrace.executor.transfers.trial"


@dataclass(frozen=True, slots=True)
class Trial:
    """`size_bytes` were read in `seconds`, the best of three, and were `right`."""

    size_bytes: int
    seconds: float
    right: bool

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.seconds


def run_trial(size_bytes: int = 64 * 2**20) -> Trial:
    """Raises ConfigError without nixl, EngineNotReady and Unavailable where it does not work."""
    with NixlPeer("reader") as reader:  # first, so that a missing package is told by this process
        owner = subprocess.Popen(
            [sys.executable, "-m", _OWNER, str(size_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            return _read(reader, owner, size_bytes)
        finally:
            try:
                owner.communicate(timeout=START_S)  # its input ends: it leaves
            except subprocess.TimeoutExpired:
                owner.kill()
                owner.wait()


def _read(reader: NixlPeer, owner: subprocess.Popen[str], size_bytes: int) -> Trial:
    if owner.stdout is None:
        raise Unavailable("the other process has no output")
    said = next((line for line in owner.stdout if line.startswith("{")), "")  # the library writes lines of its own
    if not said:
        raise Unavailable("the other process of the transfer has ended")
    found = json.loads(said)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    target = Range(ctypes.addressof(ctypes.c_uint8.from_buffer(memory)), size_bytes)
    source = Range(found["address"], size_bytes)
    with reader.offered(target):
        remote = reader.connect(base64.b64decode(found["metadata"]))
        seconds = min(reader.read(remote, source, target, TRANSFER_S) for _ in range(3))
        reader.close()
    return Trial(size_bytes, seconds, memory[:] == _bytes(size_bytes))


def _bytes(size_bytes: int) -> bytes:
    """What the owner has: no two of its pages are alike."""
    words = (number.to_bytes(8, "little") for number in range(size_bytes // 4096 + 1))
    return b"".join(word * 512 for word in words)[:size_bytes]


def own(size_bytes: int) -> None:
    """The owner's side, until standard input ends."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = _bytes(size_bytes)
    address = ctypes.addressof(ctypes.c_uint8.from_buffer(memory))
    with NixlPeer("owner") as peer, peer.offered(Range(address, size_bytes)) as metadata:
        print(json.dumps({"address": address, "metadata": base64.b64encode(metadata).decode()}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    own(int(sys.argv[1]))
