"""Gateways that hold their executors back: calls gather in one while devices have room. Pure."""

from headrace.cli.figures import Figures
from headrace.cli.finding import Finding

BUSY_SHARE = 0.9
"""A loop that runs, or waits for a processor, for more of the time has none to spare."""
IDLE_SHARE, ROOM_SHARE = 0.3, 0.5
LEAST_CALLS = 4
FULL_SHARE = 0.95


def gateway_limit(f: Figures) -> Finding | None:
    """A gateway whose event loop is busy all the time, or whose permits are gone, with devices that compute little or
    are half empty."""
    devices = list(f.services("kv_bytes").values())
    if not devices:
        return None
    computing = sum(device.rate("step_seconds_sum") for device in devices) / len(devices)
    in_use, slots = (sum(device.level(name) for device in devices) for name in ("slots_in_use", "slots"))
    gateways = f.services("permits_limit")
    for address, gateway in gateways.items():
        calls, busy = gateway.level("permits_in_use", unit="requests"), gateway.rate("loop_busy_seconds_total")
        if busy >= BUSY_SHARE and calls >= LEAST_CALLS and computing < IDLE_SHARE:
            evidence = (
                f"the loop of {address} is busy {min(1.0, busy):.0%} of the time with {calls:.0f} calls, while devices "
                f"compute {computing:.0%}"
            )
            return Finding("gateway is the limit", evidence, _more(len(gateways)))
        refused = gateway.grown("refusals_total", reason="OVERLOADED")
        if refused and (gone := _gone(gateway)) and in_use < ROOM_SHARE * slots:
            evidence = (
                f"{address} refused {refused:.0f} calls, its {gone} are taken, while {in_use:.0f} of {slots:.0f} slots "
                "are"
            )
            return Finding(
                "gateway is the limit", evidence, f"Raise its bounds (gateway.max_*). {_more(len(gateways))}"
            )
    return None


def _gone(gateway: Figures) -> str:
    """Which of its permits are taken, '' where all can be had."""
    taken = [
        f"{gateway.level('permits_limit', unit=unit):.0f} {unit}"
        for unit in gateway.values("permits_limit", "unit")
        if gateway.level("permits_in_use", unit=unit) >= FULL_SHARE * gateway.level("permits_limit", unit=unit)
    ]
    return " and ".join(taken)


def _more(num_gateways: int) -> str:
    if num_gateways == 1:
        return "Start another gateway beside it and let callers spread over both."
    return "The other gateways have time: look at how callers spread over them."
