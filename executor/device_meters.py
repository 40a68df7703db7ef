"""A device's clock and its memory's traffic in an executor's figures, read with each scrape."""

from headrace.chassis.metric_table import device as table
from headrace.chassis.metrics import Metrics, Total
from headrace.executor.hardware.reading import Read


def watch_device(metrics: Metrics, read: Read) -> None:
    """Series of what `read` does not tell are not there."""
    clock, limited = metrics.gauge(table.DEVICE_CLOCK_HERTZ), metrics.counter(table.CLOCK_LIMITED_SECONDS)
    held: dict[str, Total] = {}
    first = read()
    memory = (
        (metrics.gauge(table.MEMORY_PEAK_BYTES_PER_SECOND), metrics.gauge(table.MEMORY_BUSY_RATIO))
        if first.memory_busy is not None or first.memory_peak is not None
        else None
    )
    moved = Total(metrics.counter(table.MEMORY_MOVED_BYTES)) if first.memory_moved_bytes is not None else None

    def refresh() -> None:
        now = read()
        for kind, hertz in (("now", now.clock_hz), ("most", now.most_clock_hz)):
            if hertz is not None:
                clock.labels(kind).set(hertz)
        for reason, limited_s in now.limited_s.items():
            if reason not in held:
                held[reason] = Total(limited.labels(reason), already=limited_s)
            held[reason].is_now(limited_s)
        if memory is not None:
            memory[0].set(now.memory_peak or 0.0)
            memory[1].set(now.memory_busy or 0.0)
        if moved is not None and now.memory_moved_bytes is not None:
            moved.is_now(now.memory_moved_bytes)

    metrics.before_scrape(refresh)
