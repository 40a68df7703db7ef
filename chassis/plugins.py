"""What other packages offer by entry points, found by the name that a setting gives."""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from headrace.core.errors import ConfigError


def load(group: str, name: str, setting: str, own: Iterable[EntryPoint] = ()) -> Any:
    """What `name` stands for in the group, or among our `own`. Raises ConfigError, naming the setting, where nobody
    offers it, and what importing it raises."""
    offered = {point.name: point for point in (*entry_points(group=group), *own)}
    if name not in offered:
        there = ", ".join(sorted(offered)) or "none"
        raise ConfigError(f"{setting} is {name!r}; there are: {there}")
    return offered[name].load()
