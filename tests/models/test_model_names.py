"""Names that no model can have are unknown models, not faults of ours."""

from pathlib import Path

import pytest

from headrace.core.errors import ModelNotFound
from headrace.models.repository import Repository


@pytest.mark.parametrize("name", ["x" * 9000, "é" * 200, "a\0b", "a/b", ".", ""])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFound) as error:
        Repository(tmp_path).folder(name)
    assert len(error.value.message) < 1000
