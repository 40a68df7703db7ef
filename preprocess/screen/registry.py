"""Screens by name: ours, and what packages offer in the entry point group headrace.screens."""

from importlib.metadata import EntryPoint

from headrace.chassis import plugins
from headrace.models.repository import Repository
from headrace.preprocess.screen.protocol import LoadScreen, Screen

GROUP = "headrace.screens"
OWN = EntryPoint("minilm", "headrace.preprocess.screen.minilm:load", GROUP)


def load_screen(name: str, repository: Repository, threads: int) -> Screen[object]:
    """Raises ConfigError for a name that nobody offers, and what the screen's own loading raises."""
    offered: LoadScreen = plugins.load(GROUP, name, "screen.model", [OWN])
    return offered(repository, threads)
