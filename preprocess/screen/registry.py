"""Screens by name: ours, and what packages offer in the entry point group headrace.screens."""

from importlib.metadata import EntryPoint, entry_points

from headrace.core.errors import ConfigError
from headrace.models.repository import Repository
from headrace.preprocess.screen.protocol import LoadScreen, Screen

GROUP = "headrace.screens"
OWN = EntryPoint("minilm", "headrace.preprocess.screen.minilm:load", GROUP)


def load_screen(name: str, repository: Repository, threads: int) -> Screen[object]:
    """Raises ConfigError for a name that nobody offers, and what the screen's own loading raises."""
    offered = {point.name: point for point in (*entry_points(group=GROUP), OWN)}
    if name not in offered:
        raise ConfigError(f"screen.model is {name!r}; there are: {', '.join(sorted(offered))}")
    load: LoadScreen = offered[name].load()
    return load(repository, threads)
