"""What is true of the process of every service."""

from headrace.chassis.metric_table.metric import counter

LOOP_BUSY_SECONDS = counter(
    "loop_busy_seconds",
    ("gateway", "scheduler", "executor", "encoder", "preprocess"),
    "",
    "seconds",
    "Time that the service's event loop ran, or waited for a processor to run on.",
    "Near one second a second the loop is what limits the service: another gateway, a preprocess service of its own, "
    "or a scheduler for each pool of models.",
)
