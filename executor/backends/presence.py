"""Whether what a backend wants is installed here. Imports nothing of it: that takes seconds, and may start a device."""

import importlib.util
from collections.abc import Callable, Sequence

from headrace.core.errors import ConfigError
from headrace.executor.backends.catalogue import Backend, backends_for, unserved_because
from headrace.executor.hardware.device import Device

Found = Callable[[str], bool]


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # half an installation: its parent fails, or it was put in by hand
        return False


def missing(backend: Backend, found: Found = is_installed) -> tuple[str, ...]:
    """Of its modules, those that are not there."""
    return tuple(module for module in backend.modules if not found(module))


def require(backend: Backend, found: Found = is_installed) -> None:
    """Raises ConfigError, naming what is missing and how to get it."""
    if lacking := missing(backend, found):
        raise ConfigError(f"{backend.name} wants {', '.join(lacking)}: {backend.how}")


def describe(device: Device, found: Found = is_installed) -> Sequence[tuple[str, str]]:
    """(backend, what is to be said of it) for a reader, the best first."""
    lines = []
    for backend in backends_for(device):
        lacking = missing(backend, found)
        said = f"missing: {', '.join(lacking)}; {backend.how}" if lacking else "its packages are installed"
        lines.append((backend.name, said))
    return lines or [("none", unserved_because(device))]
