"""README.zh.md keeps step with README.md: the same headings, commands and links, in the same order."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"```.*?```", re.DOTALL)
COMMAND = re.compile(r"`((?:headrace|make|HEADRACE_|OTEL_)[^`\n]*)`")
LANGUAGES = {"README.md", "README.zh.md"}


def outline(text: str) -> dict[str, list[str]]:
    """What does not depend on the language."""
    prose = BLOCK.sub("", text)
    return {
        "headings": re.findall(r"^#+(?= )", prose, re.M),
        "blocks": [_commands(block) for block in BLOCK.findall(text)],
        "commands in the text": COMMAND.findall(prose),
        "links": [link for link in LINK.findall(prose) if link not in LANGUAGES],
    }


def _commands(block: str) -> str:
    """A block without its comments; of a drawing only its arrows' ends."""
    if block.startswith("```mermaid"):
        return " ".join(sorted(set(re.findall(r"\b(?:client|gateway|preprocess|scheduler|executor|traces)\b", block))))
    return "\n".join(line.partition("  #")[0].rstrip() for line in block.splitlines())


def test_the_translation_keeps_step() -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in sorted(LANGUAGES))
    assert outline(chinese) == outline(english)


def test_each_names_the_other() -> None:
    assert "](README.zh.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](README.md)" in (ROOT / "README.zh.md").read_text(encoding="utf-8")


def test_a_missing_command_is_found() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert outline(text.replace("headrace trace --last", "headrace trace")) != outline(text)
    assert outline(text.replace("](docs/http.md)", "](docs/kserve.md)")) != outline(text)
    assert outline(text + "\n## More\n") != outline(text)
