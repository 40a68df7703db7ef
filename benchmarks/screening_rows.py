"""Labelled rows for the screen: requests to refuse, requests to let pass, ordinary prompts; and their fixed split.

Rows come from a workloads folder (screening/ and prompts/, JSON Lines). The split is by what a row asks: translations
of a request, and all attacks for one goal, fall on the same side; it depends on the row alone, not on the others.
"""

import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.core.errors import InvalidRequest

Part = Literal["train", "validation", "test"]
LABELS = ("harm", "injection", "toxicity")
TEST_PERCENT, VALIDATION_PERCENT = 20, 12
MAX_DOCUMENT_CHARS = 6_000
EMBEDDED_CHARS = (8, 250)
EMBEDDED_LEGAL_SHARE = 5

LABEL_OF_FILE = {
    "advbench_harmful_behaviors": "harm",
    "catqa_en": "harm",
    "catqa_zh": "harm",
    "coldataset_zh": "toxicity",
    "deepset_prompt_injections": "injection",
    "harmbench_text": "harm",
    "inthewild_jailbreaks": "injection",
    "jailbreakbench_attacks": "harm",
    "jailbreakbench_goals": "harm",
    "openai_moderation": "toxicity",
    "xstest": "harm",
}
"""What a row of label 1 in each file is an example of."""


@dataclass(frozen=True, slots=True)
class ScreeningRow:
    """One text. `label` is '' for one to let pass, None where that is a matter of policy; else one of LABELS."""

    file: str
    lang: str
    text: str
    label: str | None
    goal: str

    @property
    def part(self) -> Part:
        """Which side of the split it is on."""
        place = _number(self.goal) % 100
        if place < TEST_PERCENT:
            return "test"
        return "validation" if place < TEST_PERCENT + VALIDATION_PERCENT else "train"


def embedded_rows(rows: Sequence[ScreeningRow]) -> list[ScreeningRow]:
    """Short rows again, each before or behind an ordinary prompt of its language and part: what is to be refused must
    be found there too, and what is legal must stay so. Files `embedded` and, in Chinese, `embedded_zh`."""
    short = [row for row in rows if row.label is not None and EMBEDDED_CHARS[0] <= len(row.text) <= EMBEDDED_CHARS[1]]
    carriers: dict[tuple[bool, Part], list[str]] = {}
    for row in short:
        if row.file not in LABEL_OF_FILE and row.label == "":
            carriers.setdefault((row.lang == "zh", row.part), []).append(row.text)
    made = []
    for row in short:
        number, chinese = _number(row.text), row.lang == "zh"
        if row.label in ("harm", "injection") or (row.label == "" and number % EMBEDDED_LEGAL_SHARE == 0):
            choices = carriers[chinese, row.part]
            pair = [row.text, choices[number // 7 % len(choices)]]
            text = "\n".join(pair if number % 2 else reversed(pair))
            made.append(ScreeningRow("embedded_zh" if chinese else "embedded", row.lang, text, row.label, row.goal))
    return made


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def screening_rows(workloads: Path) -> list[ScreeningRow]:
    """Every row of screening/ and prompts/ under the folder. Raises InvalidRequest where there are none."""
    rows = [
        row
        for folder, labelled in (("screening", True), ("prompts", False))
        for file in sorted((workloads / folder).glob("*.jsonl.gz"))
        for row in _rows_of(file, labelled)
    ]
    if not any(row.label for row in rows):
        raise InvalidRequest(f"no screening/*.jsonl.gz with labelled rows under {workloads}", field="workloads")
    return rows


def _rows_of(file: Path, labelled: bool) -> Iterator[ScreeningRow]:
    name = file.name.removesuffix(".jsonl.gz")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            label = _label(name, row["label"]) if labelled else ""
            for text in _texts(row):
                yield ScreeningRow(name, row.get("lang", "en"), text, label, _goal(name, row))


def _label(name: str, value: int | None) -> str | None:
    return None if value is None else LABEL_OF_FILE[name] if value else ""


def _goal(name: str, row: dict[str, Any]) -> str:
    """What the split goes by: the id that translations, attacks and turns of one dialogue share."""
    if "goal_id" in row:
        return f"jbb-{row['goal_id']}"
    return str(row.get("conversation", row["id"]))


def _texts(row: dict[str, Any]) -> list[str]:
    """What a user would have sent: the prompt, each of their turns, or a document's beginning with a question."""
    if "messages" in row:
        return [turn["content"] for turn in row["messages"] if turn["role"] == "user"]
    if "document" in row:
        return [f"{row['document'][:MAX_DOCUMENT_CHARS]}\n\n{row['queries'][0]}", *row["queries"][1:3]]
    if "input" in row:
        return [row["input"][:MAX_DOCUMENT_CHARS]]
    return [text for text in row.get("turns", [row.get("prompt", "")]) if text]
