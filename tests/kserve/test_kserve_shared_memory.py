"""Shared memory: confined to a beginning of names, to the bounds of regions, and to each tenant's own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.errors import InvalidRequest, NotFound, Unsupported
from headrace.gateway.kserve.shared_memory import FOLDER, MAX_REGIONS, Regions, open_regions

PREFIX = f"headrace-test-{os.getpid()}-"
TENANT = "mills"


@pytest.fixture
def shared() -> Iterator[Path]:
    """An object of 64 bytes, 0 to 63."""
    path = Path(FOLDER) / f"{PREFIX}object"
    path.write_bytes(bytes(range(64)))
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def regions() -> Iterator[Regions]:
    with open_regions(PREFIX, max_bytes=32) as opened:
        yield opened


def test_data_goes_in_and_out_at_its_place(shared, regions):
    regions.register(TENANT, "r", f"/{shared.name}", 16, 40)
    assert regions.read(TENANT, "r", 4, 3, "text") == bytes([20, 21, 22])
    regions.write(TENANT, "r", 8, 16, "embedding", b"abc")
    assert shared.read_bytes()[24:27] == b"abc"
    assert shared.read_bytes()[27] == 27
    [region] = regions.status(TENANT, "").values()
    assert (region.name, region.key, region.offset, region.byte_size) == ("r", f"/{shared.name}", 16, 40)
    regions.unregister(TENANT, "r")
    assert not regions.status(TENANT, "")
    regions.unregister(TENANT, "r")


@pytest.mark.parametrize(
    ("key", "offset", "byte_size", "field"),
    [
        ("/other", 0, 8, "key"),
        (f"/../{PREFIX}object", 0, 8, "key"),
        (f"/{PREFIX}/../../etc/passwd", 0, 8, "key"),
        ("", 0, 8, "key"),
        (f"/{PREFIX}object", 0, 0, "byte_size"),
        (f"/{PREFIX}object", 0, 65, "byte_size"),
        (f"/{PREFIX}object", 60, 8, "byte_size"),
        (f"/{PREFIX}object", 2**64 - 1, 2**64 - 1, "byte_size"),
    ],
    ids=["other", "parent", "far", "empty", "no bytes", "too many bytes", "past the end", "overflow"],
)
def test_what_is_outside_is_not_registered(shared, regions, key, offset, byte_size, field):
    with pytest.raises(InvalidRequest) as refused:
        regions.register(TENANT, "r", key, offset, byte_size)
    assert refused.value.field == field
    assert refused.value.limit
    assert not regions.status(TENANT, "")


def test_links_pipes_and_what_is_not_there_are_refused(shared, regions, tmp_path):
    link, pipe = Path(FOLDER) / f"{PREFIX}link", Path(FOLDER) / f"{PREFIX}pipe"
    (tmp_path / "secret").write_bytes(b"x" * 64)
    link.symlink_to(tmp_path / "secret")
    os.mkfifo(pipe)
    try:
        for name, error in ((link.name, NotFound), (pipe.name, InvalidRequest), (f"{PREFIX}none", NotFound)):
            with pytest.raises(error):
                regions.register(TENANT, "r", name, 0, 8)
    finally:
        link.unlink()
        pipe.unlink()


@pytest.mark.parametrize(("offset", "byte_size"), [(0, 41), (40, 1), (2**64 - 1, 8), (0, 33)])
def test_a_tensor_stays_within_its_region_and_a_messages_size(shared, regions, offset, byte_size):
    regions.register(TENANT, "r", shared.name, 16, 40)
    with pytest.raises(InvalidRequest) as refused:
        regions.read(TENANT, "r", offset, byte_size, "inputs[0]")
    assert refused.value.field == "inputs[0]"


def test_an_output_that_does_not_fit_is_refused_by_name_and_size(shared, regions):
    regions.register(TENANT, "r", shared.name, 0, 8)
    with pytest.raises(InvalidRequest) as refused:
        regions.write(TENANT, "r", 0, 2, "text_output", b"abc")
    assert (refused.value.field, refused.value.limit) == ("text_output", "3 bytes")


def test_an_object_that_shrinks_is_the_callers_fault(shared, regions):
    regions.register(TENANT, "r", shared.name, 0, 64)
    os.truncate(shared, 4)
    with pytest.raises(InvalidRequest) as refused:
        regions.read(TENANT, "r", 0, 8, "inputs[0]")
    assert refused.value.field == "inputs[0]"


def test_tenants_do_not_see_each_others_regions(shared, regions):
    regions.register(TENANT, "r", shared.name, 0, 8)
    with pytest.raises(NotFound):
        regions.read("others", "r", 0, 8, "inputs[0]")
    with pytest.raises(NotFound):
        regions.status("others", "r")
    regions.unregister("others", "")
    assert set(regions.status(TENANT, "")) == {"r"}
    with pytest.raises(InvalidRequest):
        regions.register(TENANT, "r", shared.name, 0, 8)


def test_their_number_is_bounded_and_all_are_let_go(shared):
    before = len(os.listdir("/proc/self/fd"))
    with open_regions(PREFIX, 32) as regions:
        for number in range(MAX_REGIONS):
            regions.register(TENANT, str(number), shared.name, 0, 8)
        with pytest.raises(InvalidRequest):
            regions.register(TENANT, "one more", shared.name, 0, 8)
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_beginning_it_is_off(shared):
    with open_regions("", 32) as regions, pytest.raises(Unsupported):
        regions.register(TENANT, "r", shared.name, 0, 8)
