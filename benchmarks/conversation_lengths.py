"""Lengths of recorded conversations, a quarter as long: a CPU serves enough of them so."""

TRACE = "azure_llm_2023_conv"
SHRINK = 4
MOST = (1024, 256)
"""Tokens of prompt and answer at most, after shrinking."""


def shrunk(prompt: float, answer: float) -> tuple[int, int]:
    """Tokens of a prompt and of an answer as they are served; neither is ever nothing."""
    return min(max(2, round(prompt / SHRINK)), MOST[0]), min(max(1, round(answer / SHRINK)), MOST[1])
