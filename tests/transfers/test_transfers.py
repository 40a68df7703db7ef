"""Memory that another process owns is read by NIXL, with its program taking no part."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.core.errors import ConfigError, Unavailable
from headrace.executor.transfers import nixl_peer, trial
from headrace.executor.transfers.nixl_peer import NixlPeer, Range

SIZE = 1 << 16


@pytest.fixture(autouse=True)
def installed() -> None:
    pytest.importorskip("nixl", reason="nixl has builds for Linux on x86-64 only")


def test_two_processes_move_memory() -> None:
    found = trial.run_trial(4 << 20)
    assert found.right
    assert found.size_bytes == 4 << 20
    assert found.bytes_per_s > 0


@pytest.fixture
def pair() -> Iterator[tuple[NixlPeer, NixlPeer]]:
    with NixlPeer("one") as one, NixlPeer("two") as two:
        yield one, two


def over(array: np.ndarray) -> Range:  # type: ignore[type-arg]
    return Range(array.ctypes.data, array.nbytes)


def test_a_part_is_read_into_a_part(pair: tuple[NixlPeer, NixlPeer]) -> None:
    owner, reader = pair
    source, target = np.arange(SIZE, dtype=np.uint8), np.zeros(SIZE, np.uint8)
    with owner.offered(over(source)) as metadata, reader.offered(over(target)):
        remote = reader.connect(metadata)
        assert remote == "one"
        reader.read(remote, Range(source.ctypes.data + 100, 50), Range(target.ctypes.data + 1000, 50), 10.0)
        reader.close()
    assert target[1000:1050].tolist() == source[100:150].tolist()
    assert int(target.astype(int).sum()) == int(source[100:150].astype(int).sum()), "nothing else was written"


def test_bad_input_is_told(pair: tuple[NixlPeer, NixlPeer]) -> None:
    owner, reader = pair
    source, target = np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    with owner.offered(over(source)) as metadata, reader.offered(over(target)):
        remote = reader.connect(metadata)
        with pytest.raises(ValueError, match="10 bytes do not fit 20"):
            reader.read(remote, Range(source.ctypes.data, 10), Range(target.ctypes.data, 20), 1.0)
        stranger = ctypes.create_string_buffer(64)
        with pytest.raises(Unavailable, match="a transfer from one failed"):
            reader.read(remote, Range(ctypes.addressof(stranger), 64), Range(target.ctypes.data, 64), 1.0)
        with pytest.raises(Unavailable, match="a transfer from nobody failed"):
            reader.read("nobody", Range(source.ctypes.data, 64), Range(target.ctypes.data, 64), 1.0)
        reader.close()
    with pytest.raises(Unavailable, match="NIXL cannot connect"):
        reader.connect(b"no metadata")


def test_an_owner_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = subprocess.Popen

    def dying(command: list[str], **options: object) -> object:
        return whole([sys.executable, "-c", "raise SystemExit(3)"], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(trial.subprocess, "Popen", dying)
    with pytest.raises(Unavailable, match="the other process of the transfer has ended"):
        trial.run_trial(1 << 12)


def test_without_the_package_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_peer, "MODULE", "nixl_is_not_here")
    with pytest.raises(ConfigError, match=r"transfers want the package nixl .*; install headrace\[executor-nixl\]"):
        NixlPeer("one")
