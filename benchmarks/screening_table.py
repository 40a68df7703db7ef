"""The screen's figures: recall and over-blocking of each file, on rows of the split's test part."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.benchmarks.screening_rows import ScreeningRow

CLEAR_HARM = (
    "advbench_harmful_behaviors",
    "catqa_en",
    "harmbench_text",
    "jailbreakbench_attacks",
    "jailbreakbench_goals",
)
INJECTIONS = ("deepset_prompt_injections", "inthewild_jailbreaks")
SCREENING_FILES = frozenset(
    (*CLEAR_HARM, *INJECTIONS, "bipia_injection_payloads", "catqa_zh", "coldataset_zh", "cvalues_zh")
) | {"embedded", "embedded_zh", "flames_zh", "openai_moderation", "xstest"}
"""The others hold ordinary prompts."""


@dataclass(frozen=True, slots=True)
class Share:
    """`blocked` of `total` rows."""

    blocked: int
    total: int

    @property
    def value(self) -> float | None:
        return self.blocked / self.total if self.total else None

    def __str__(self) -> str:
        return "" if not self.total else f"{self.blocked / self.total:.3f} ({self.total})"


def share(rows: Iterable[tuple[ScreeningRow, bool]], files: Iterable[str] | None, *, illegal: bool | None) -> Share:
    """Blocked among the test rows of these files (None: of ordinary prompts) that are illegal, legal, or (None)
    a matter of policy."""
    chosen = [
        found
        for row, found in rows
        if row.part == "test"
        and (row.file in files if files is not None else row.file not in SCREENING_FILES)
        and (None if row.label is None else bool(row.label)) is illegal
    ]
    return Share(sum(chosen), len(chosen))


def file_table(rows: Sequence[ScreeningRow], found: Sequence[bool]) -> str:
    """A Markdown table."""
    pairs = list(zip(rows, found, strict=True))
    lines = [
        "| file | recall (rows) | over-blocking (rows) | blocked, matter of policy (rows) |",
        "| --- | ---: | ---: | ---: |",
    ]
    for file in sorted({row.file for row in rows}):
        cells = [str(share(pairs, (file,), illegal=illegal)) for illegal in (True, False, None)]
        lines.append(f"| {file} | {' | '.join(cells)} |")
    total = share(pairs, None, illegal=False)
    lines.append(f"| **ordinary prompts together** | | {total} | |")
    return "\n".join(lines)
