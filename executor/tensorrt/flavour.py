"""The two TensorRTs: one API, two packages, and what each builds for. Imported only when a build asks for it."""

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.executor.hardware.shapes import table


@dataclass(frozen=True, slots=True)
class Flavour:
    """`ahead_of_time` are architectures that it builds for without a device; one with none builds for the device that
    is there. `lacks` are precisions that its engines do not have on an architecture that has them."""

    name: str
    how_to_install: str
    ahead_of_time: tuple[str, ...] = ()
    has_timing_cache: bool = False
    lacks: tuple[tuple[str, str], ...] = ()

    @property
    def installed(self) -> bool:
        """TensorRT on the public index is a stub that only says where the package is: without its libraries it is
        not there."""
        return find_spec(self.name) is not None

    @property
    def version(self) -> str:
        """Of the package. Raises ConfigError where it is not installed."""
        for name in (self.name, self.name.replace("_", "-")):
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        raise ConfigError(f"{self.name} is not installed: {self.how_to_install}")

    def load(self) -> Any:
        """The module. Raises ConfigError in one line."""
        try:
            return import_module(self.name)
        except (ImportError, OSError) as error:  # OSError: a library that it needs
            raise ConfigError(f"{self.name}: {error}; {self.how_to_install}") from error


FLAVOURS = {
    "tensorrt": Flavour(
        "tensorrt",
        "pip install tensorrt, from NVIDIA's index of packages",
        has_timing_cache=True,
    ),
    "tensorrt_rtx": Flavour(
        "tensorrt_rtx",
        "pip install tensorrt-rtx",
        ahead_of_time=("sm_75", "sm_80", "sm_86", "sm_89", "sm_120"),
        lacks=(("sm_75", "fp32"),),  # FP32 GEMM is not supported, as its builder says
    ),
}


def find_flavour(name: str) -> Flavour:
    """Raises InvalidRequest."""
    if name not in FLAVOURS:
        raise InvalidRequest(f"{name!r} is no flavour of TensorRT", field="flavour", limit=", ".join(FLAVOURS))
    return FLAVOURS[name]


def check_target(flavour: Flavour, architecture: str, precision: str, here: str = "") -> None:
    """Whether it builds that precision for that architecture; `here` is the architecture of the device that is there,
    '' without one. Pure. Raises InvalidRequest that says what can be had."""
    targets = flavour.ahead_of_time or ((here,) if here else ())
    if architecture not in targets:
        can = f"builds for {', '.join(targets)}" if targets else "builds only for a device that is there, and none is"
        raise InvalidRequest(
            f"{flavour.name} has no engines for {architecture}: it {can}", field="arch", limit=", ".join(targets)
        )
    row = table().get(architecture)
    known = row.precisions if row else ("fp32", "fp16")
    has = [each for each in known if (architecture, each) not in flavour.lacks]
    if precision not in has:
        raise InvalidRequest(
            f"{flavour.name} on {architecture} has no {precision}: it has {', '.join(has)}",
            field="precision",
            limit=", ".join(has),
        )
