"""What is wrong with executors' devices, each looked at for itself: one that idles or is full hides among many.

Pure: each row looks at the figures and says what it found.
"""

from collections.abc import Sequence
from statistics import median

from headrace.cli.figures import Figures
from headrace.cli.finding import Finding

IDLE_SHARE = 0.3
"""A device that computes less of the time idles."""
WAITED_S = 0.5
"""What waits for less has only just come."""
FULL_SHARE = 0.95
SEEN_S = 0.2
"""Steps of so many rows that took less in all say little."""
MORE_ROWS, LEAST_GAIN, NEAR_PEAK = 4, 1.3, 0.5
SLOWER = 1.6
"""So many times as long as before, at the same work, is a device that has become slower."""
BEHIND = 2.0
"""So many times as long as its peers'. Rows of one kind of step differ by less than this factor."""
LOW_CLOCK, HELD_SHARE = 0.6, 0.2


def memory_pressure(f: Figures) -> Finding | None:
    """The executor whose KV memory is promised away the most, and what it is held by."""
    pressures = {address: _kv_share(device, "held", "reserved") for address, device in f.services("kv_bytes").items()}
    address = max(pressures, key=lambda each: pressures[each], default="")
    if not address or pressures[address] < FULL_SHARE:
        return None
    device = f.services("kv_bytes")[address]
    evidence = f"{pressures[address]:.0%} of KV memory at {address} is promised"
    if _kv_share(device, "reserved") > 0.5:
        evidence += f", {_kv_share(device, 'reserved'):.0%} of it all for tokens that are not made yet"
        return Finding("memory pressure", evidence, "Ask for smaller max_tokens, or raise executor.kv_bytes.")
    if (empty := device.level("kv_fragmentation_ratio")) > 0.5:
        evidence += f", {empty:.0%} of what is mapped holds nothing"
        return Finding("memory pressure", evidence, "Let it run idle for a moment, or raise executor.kv_bytes.")
    return Finding("memory pressure", evidence, "Raise executor.kv_bytes, or lower executor.num_slots.")


def device_full(f: Figures) -> Finding | None:
    """Requests wait, and no device that could take them has a slot left."""
    devices, waiting = _devices(f), f.level("queue_requests")
    if not waiting or not devices or any(_has_room(device) for device in devices):
        return None
    in_use, slots = (sum(device.level(name) for device in devices) for name in ("slots_in_use", "slots"))
    evidence = f"{in_use:.0f} of {slots:.0f} slots taken, {waiting:.0f} requests wait"
    return Finding("device full", evidence, "Add executors, or executor.num_slots where KV memory is free.")


def idle_with_queue(f: Figures) -> Finding | None:
    """Requests wait while devices that have room compute little: what waits does not fit them, or waits for company."""
    waiting = f.level("queue_requests")
    oldest_s = max(
        (f.level("queue_age_seconds", **{"class": each}) for each in f.values("queue_age_seconds", "class")),
        default=0.0,
    )
    devices = _devices(f)
    idle = [device for device in devices if _has_room(device) and device.rate("step_seconds_sum") < IDLE_SHARE]
    if not waiting or oldest_s < WAITED_S or not idle:
        return None
    busy = sum(device.rate("step_seconds_sum") for device in idle) / len(idle)
    evidence = (
        f"{waiting:.0f} requests wait, the oldest for {oldest_s:.1f} s, while {len(idle)} of {len(devices)} devices "
        f"compute {busy:.0%} of the time"
    )
    company, all_waits = (f.grown("queue_wait_seconds_sum", **labels) for labels in ({"reason": "company"}, {}))
    if all_waits and company > 0.5 * all_waits:
        return Finding("idle device with a queue", evidence, "headrace scheduler set window_ms=10")
    return Finding(
        "idle device with a queue", evidence, "Compare the models and precisions asked for with those loaded."
    )


def flat_throughput(f: Figures) -> Finding | None:
    """Since its start a device has made hardly more tokens a second with many rows than with few, far from its peak."""
    for address, device in f.services("decode_step_seconds_total").items():
        speeds: dict[int, float] = {}
        for rows in sorted(map(int, device.values("decode_step_seconds_total", "rows"))):
            took_s = device.level("decode_step_seconds_total", rows=str(rows))
            if took_s >= SEEN_S:
                speeds[rows] = device.level("decode_step_tokens_total", rows=str(rows)) / took_s
        few, many = min(speeds, default=0), max(speeds, default=0)
        peak = device.level("peak_tokens_per_second")
        if many < MORE_ROWS * few or not few or speeds[many] >= LEAST_GAIN * speeds[few]:
            continue
        if peak and speeds[many] >= NEAR_PEAK * peak:  # it computes as fast as it can
            continue
        evidence = f"{address} makes {speeds[few]:.0f} tokens/s with up to {few} rows, {speeds[many]:.0f} with {many}"
        if peak:
            evidence += f"; it has computed {peak:.0f}"
        read = device.level("memory_read_bytes_total", what="kv"), device.level("memory_read_bytes_total")
        if read[1] and read[0] > 0.5 * read[1]:
            return Finding(
                "throughput does not rise with batch",
                evidence,
                "Contexts' KV is what is read: a smaller executor.kv_precision.",
            )
        return Finding(
            "throughput does not rise with batch",
            evidence,
            "Rows are copied one by one: look at pinned buffers, copies beside computing, GPUDirect RDMA.",
        )
    return None


def straggler(f: Figures) -> Finding | None:
    """The executor that takes far longer for a token than those that serve the same on the same kind of machine, in
    steps of about as many rows."""
    behind: dict[str, tuple[float, float, int]] = {}
    for fleet in _fleets(f).values():
        for address, device in fleet.items():
            compared = _beside(device, [peer for other, peer in fleet.items() if other != address])
            if compared is not None:
                behind[address] = (*compared, len(fleet) - 1)
    address = max(behind, key=lambda each: behind[each][0] / behind[each][1], default="")
    if not address or behind[address][0] < BEHIND * behind[address][1]:
        return None
    own_s, theirs_s, num_peers = behind[address]
    evidence = (
        f"{address} takes {own_s * 1000:.1f} ms a token in steps of as many rows as "
        f"{'its peer that takes' if num_peers == 1 else f'its {num_peers} peers that take'} {theirs_s * 1000:.1f} ms"
    )
    return Finding("straggler", evidence, "Look at that machine: clocks, heat, what else runs there. Or drain it.")


def slowed_down(f: Figures) -> Finding | None:
    """A device that does the same work more slowly than before, or whose clock is low while it computes."""
    worst: tuple[float, str, list[str]] = (0.0, "", [])
    for address, device in f.services("kv_bytes").items():
        signs, weight = [], 0.0
        usual_s, took_s = device.grown("usual_step_seconds_total"), device.grown("decode_step_seconds_total")
        if usual_s >= SEEN_S and took_s >= SLOWER * usual_s:
            signs.append(f"steps take {took_s / usual_s:.1f} times as long as before at the same shape")
            weight = took_s / usual_s
        now_hz, most_hz = (device.level("device_clock_hertz", kind=kind) for kind in ("now", "most"))
        if device.rate("step_seconds_sum") >= IDLE_SHARE and 0 < now_hz < LOW_CLOCK * most_hz:
            signs.append(f"its clock is {now_hz / 1e9:.1f} of {most_hz / 1e9:.1f} GHz")
            weight = max(weight, most_hz / now_hz)
        for reason in device.values("clock_limited_seconds_total", "reason"):
            held = device.rate("clock_limited_seconds_total", reason=reason)
            if held >= HELD_SHARE:
                signs.append(f"{reason} holds its clock down {min(1.0, held):.0%} of the time")
                weight = max(weight, 1.0)
        if weight > worst[0]:
            worst = (weight, address, signs)
    _, address, signs = worst
    if not signs:
        return None
    advice = "Look at its cooling, its power limit and its governor; where its clock is not told, for other load there."
    return Finding("device slowed down", f"{address}: {', '.join(signs)}", advice)


def late_steps(f: Figures) -> Finding | None:
    late = {address: device.grown("late_steps_total") for address, device in f.services("late_steps_total").items()}
    total = sum(late.values())
    if not total:
        return None
    worst = max(late, key=lambda each: late[each])
    evidence = f"{total:.0f} far later than predicted, {late[worst]:.0f} of them at {worst}"
    return Finding("late steps", evidence, "Look for other load, clocks and swapping on that machine.")


def _fleets(f: Figures) -> dict[tuple[str, ...], dict[str, Figures]]:
    """Executors that should be as fast, by address."""
    fleets: dict[tuple[str, ...], dict[str, Figures]] = {}
    for address, device in f.services("served").items():
        alike = tuple(
            label for name in ("model", "precision", "architecture") for label in device.values("served", name)
        )
        fleets.setdefault(alike, {})[address] = device
    return fleets


def _beside(device: Figures, peers: Sequence[Figures]) -> tuple[float, float] | None:
    """Seconds a token of its steps that only decoded, and what the median peer would have taken for them; None where
    no peer has had steps of as many rows."""
    own_s = theirs_s = tokens = 0.0
    for rows in device.values("decode_step_seconds_total", "rows"):
        took_s, made = _decoded(device, rows)
        speeds = [peer_s / peer_made for peer_s, peer_made in (_decoded(peer, rows) for peer in peers) if peer_made]
        if made and speeds:
            own_s, tokens = own_s + took_s, tokens + made
            theirs_s += median(speeds) * made
    return (own_s / tokens, theirs_s / tokens) if tokens and own_s >= SEEN_S else None


def _decoded(device: Figures, rows: str) -> tuple[float, float]:
    """Seconds and tokens of its steps of so many rows at most, meanwhile."""
    names = ("decode_step_seconds_total", "decode_step_tokens_total")
    took_s, made = (device.grown(name, rows=rows) for name in names)
    return took_s, made


def _kv_share(device: Figures, *states: str) -> float:
    total = device.level("kv_bytes", state="total")
    return sum(device.level("kv_bytes", state=state) for state in states) / total if total else 0.0


def _devices(f: Figures) -> list[Figures]:
    """Decoders' executors; encoders' where there are no others, since nothing else that waits can go to them."""
    return list((f.services("kv_bytes") or f.services("slots")).values())


def _has_room(device: Figures) -> bool:
    return device.level("slots_in_use") < FULL_SHARE * device.level("slots")
