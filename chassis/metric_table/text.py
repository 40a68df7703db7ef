"""How prompts are prepared, in the gateway or in a preprocess service."""

from headrace.chassis.metric_table.metric import SHORT_S, gauge, histogram

_TEXTS = ("gateway", "preprocess")

PREPARE_SECONDS = histogram(
    "prepare_seconds",
    _TEXTS,
    "",
    "seconds",
    "Chat template and tokenising of one prompt, with the wait for a thread.",
    "More `gateway.tokenizer_threads`, or a preprocess service of its own (`headrace up --preprocess remote`).",
    SHORT_S,
)
PREPARE_WAITING = gauge(
    "prepare_waiting",
    _TEXTS,
    "",
    "prompts",
    "Prompts that wait for a thread or are in one.",
    "The tokenizer is saturated: as prepare seconds.",
)
PREPARE_THREADS = gauge(
    "prepare_threads", _TEXTS, "", "threads", "Threads that prepare prompts.", "Nothing: a setting."
)
