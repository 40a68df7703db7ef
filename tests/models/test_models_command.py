"""`headrace models`, as it is typed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.models import app
from headrace.core.errors import EngineNotReady, HeadraceError, ModelNotFound, Unavailable
from headrace.models import reference


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], terminal_width=200)
    if isinstance(result.exception, HeadraceError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_model_is_added_listed_shown_and_removed(tmp_path: Path, write_bert: Callable[..., Path]) -> None:
    home = ("--home", tmp_path / "home")
    assert "no models in" in run("list", *home)
    source = write_bert(tmp_path / "tiny")
    assert "added small (encoder, 64 tokens of context)" in run("add", source, "--name", "small", *home)
    assert "small is installed already" in run("add", source, "--name", "small", *home)
    assert "small" in run("list", *home)
    shown = run("show", "small", "--verify", *home)
    assert "all files are whole" in shown
    assert "check.least_correlation" in shown
    (tmp_path / "home/models/small/tokenizer.json").unlink()
    assert "missing" in run("show", "small", *home)
    with pytest.raises(EngineNotReady, match=r"damaged \(tokenizer\.json\)"):
        run("show", "small", "--verify", *home)
    assert "removed small" in run("remove", "small", *home)
    with pytest.raises(ModelNotFound):
        run("show", "small", *home)


def test_digests_are_shown_whole_on_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    digest = reference.install(tmp_path).info.digest
    shown = run("show", "reference", "--home", tmp_path)
    assert digest in "".join(line.split()[-1] for line in shown.splitlines() if line.strip())


@pytest.mark.parametrize("damage", ['kind = "dec', "", "\xff"])
def test_a_broken_record_is_said_beside_the_others_and_can_be_removed_or_mended(
    tmp_path: Path, write_bert: Callable[..., Path], damage: str
) -> None:
    home = ("--home", tmp_path / "home")
    source = write_bert(tmp_path / "tiny")
    reference.install(tmp_path / "home")
    for mend in (("add", source, *home), ("remove", "tiny", *home)):
        run("add", source, *home)
        (tmp_path / "home/models/tiny/model.toml").write_text(damage, encoding="latin-1")
        listed = run("list", *home)
        assert "damaged" in listed
        assert "built in" in listed
        with pytest.raises(EngineNotReady, match=r"'tiny' is damaged \(model\.toml\)"):
            run("show", "tiny", *home)
        run(*mend)
        assert "damaged" not in run("list", *home)


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path, write_bert: Callable[..., Path]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"'tiny' cannot be added: .*Not a directory"):
        run("add", write_bert(tmp_path / "tiny"), "--home", tmp_path / "file")


@pytest.mark.parametrize("command", ["show", "remove"])
def test_unknown_models_are_an_error(tmp_path: Path, command: str) -> None:
    with pytest.raises(ModelNotFound, match="no model 'nonesuch'; installed: none"):
        run(command, "nonesuch", "--home", tmp_path)
