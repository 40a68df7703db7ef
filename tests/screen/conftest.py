"""The screen that comes with the package (wants `headrace models add minilm`)."""

import pytest

from headrace.chassis.config import default_home
from headrace.models.repository import Repository
from headrace.preprocess.screen.minilm import MiniLmScreen, load


@pytest.fixture(scope="session")
def minilm() -> MiniLmScreen:
    return load(Repository(default_home()), threads=2)
