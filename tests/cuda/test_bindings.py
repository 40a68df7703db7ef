"""The real bindings have every call and value that is used, with as many parameters; without a driver they say so in
one line."""

import inspect
import re
import subprocess
import sys

import pytest

from headrace.core.errors import EngineNotReady
from headrace.executor.cuda.bindings import Bindings, load_bindings
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.fake import values
from headrace.executor.cuda.fake.driver import FakeCuda

CALLS = sorted(name for name in vars(Bindings) if re.match(r"cu[A-Z]", name))


def test_the_protocol_is_not_empty() -> None:
    assert len(CALLS) > 30


@pytest.mark.parametrize("name", CALLS)
def test_the_bindings_have_the_call_as_the_fake_has_it(name: str) -> None:
    real = getattr(load_bindings(), name)
    signature = (real.__doc__ or "").splitlines()[0]
    parameters = re.sub(r"\[[^\]]*\]", "", signature[signature.index("(") + 1 : signature.rindex(")")])
    expected = len(inspect.signature(getattr(Bindings, name)).parameters) - 1
    assert len([each for each in parameters.split(",") if each.strip()]) == expected, signature
    assert len(inspect.signature(getattr(FakeCuda(), name)).parameters) == expected


@pytest.mark.parametrize(
    ("real", "ours"),
    [
        ("CUresult", values.Result),
        ("CUmemAllocationType", values.AllocationType),
        ("CUmemLocationType", values.LocationType),
        ("CUmemAccess_flags", values.AccessFlags),
        ("CUmemAllocationGranularity_flags", values.GranularityFlags),
        ("CUstream_flags", values.StreamFlags),
        ("CUevent_flags", values.EventFlags),
    ],
)
def test_names_and_numbers_are_those_of_cuda(real: str, ours: type[values.Result]) -> None:
    found = getattr(load_bindings(), real)
    assert {each.name: int(getattr(found, each.name)) for each in ours} == {each.name: int(each) for each in ours}


def test_structures_take_what_is_set() -> None:
    cuda = load_bindings()
    for kinds in (cuda, FakeCuda()):
        prop, access = kinds.CUmemAllocationProp(), kinds.CUmemAccessDesc()
        prop.type = kinds.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        access.flags = kinds.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        for each in (prop, access):
            each.location.type = kinds.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            each.location.id = 3
        assert (int(prop.type), int(prop.location.type), prop.location.id) == (1, 1, 3)
        assert (int(access.flags), int(access.location.type), access.location.id) == (3, 1, 3)


def test_without_a_driver_or_device_it_is_one_line() -> None:
    """In a process that sees no device, whatever machine this is."""
    code = (
        "from headrace.core.errors import EngineNotReady\n"
        "from headrace.executor.cuda.bindings import load_bindings\n"
        "from headrace.executor.cuda.device import CudaDevice\n"
        "try:\n    CudaDevice(load_bindings())\nexcept EngineNotReady as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"no CUDA device 0: [^\n]+\n", done.stdout)


def test_addresses_handles_and_streams_may_be_plain_numbers() -> None:
    """In a process that sees no device, with a driver that is not initialised or not there: no argument is refused."""
    code = (
        "import inspect, re\n"
        "from headrace.executor.cuda.bindings import Bindings, load_bindings\n"
        "cuda = load_bindings()\n"
        "special = {'cuMemGetAllocationGranularity': (cuda.CUmemAllocationProp(), "
        "cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM),\n"
        "    'cuMemCreate': (1 << 21, cuda.CUmemAllocationProp(), 0),\n"
        "    'cuMemSetAccess': (1 << 21, 1 << 21, [cuda.CUmemAccessDesc()], 1)}\n"
        "for name in vars(Bindings):\n"
        "    if not re.match('cu[A-Z]', name) or name == 'cuInit':\n"
        "        continue\n"
        "    count = len(inspect.signature(getattr(Bindings, name)).parameters) - 1\n"
        "    try:\n"
        "        answer = getattr(cuda, name)(*special.get(name, (0,) * count))\n"
        "    except RuntimeError:\n"
        "        pass\n"
        "    else:\n"
        "        assert answer[0].name != 'CUDA_SUCCESS', name\n"
    )
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_without_the_package_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(EngineNotReady, match=r"wants the package cuda-bindings, headrace\[executor-cuda\]"):
        CudaDevice(load_bindings())
