"""agree: the suite on a recorded trace, and the simulator on the same requests: do throughput and waits agree?

The simulator is given the step times that the suite's scheduler has learned, and one factor on them for what the step
loop, the services and the clients take beside the engine: the one that makes a burst last as long in both. Bursts run
before and after the trace, since a machine's speed drifts; nothing is fitted to the trace itself.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import cast

from headrace.benchmarks.class_mix import CLASSES, draw_class
from headrace.benchmarks.conversation_lengths import SHRINK, TRACE, excerpt, recording
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.open_loop import steady_rate
from headrace.benchmarks.prompts import Prompts
from headrace.benchmarks.suite import Suite, started
from headrace.chassis import signals
from headrace.client.scheduler_admin import ExecutorStatus, SchedulerAdmin, StepModel
from headrace.client.values import Qos
from headrace.core.errors import Unavailable
from headrace.core.request import QosClass
from headrace.simulator.executor import Device
from headrace.simulator.policies import LIMITS
from headrace.simulator.step_times import StepTimes
from headrace.simulator.workload.arrival import Arrival
from headrace.simulator.world import Setup, World
from headrace.standalone.span_reader import SETTLE_S, SpanReader, open_reader
from headrace.standalone.spans import default_database

LOAD = 1.3
"""Of what the suite can answer: waits are then long enough to be compared."""
WINDOWS = 3
BURST = 192
SUITE, SIMULATED = "suite", "simulated"


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one request: seconds from its arrival until an executor had it, to its first token and to its end, and when
    that was since the beginning."""

    qos: str
    wait_s: float
    ttft_s: float
    total_s: float
    ended_s: float
    num_tokens: int


async def run(lab: Lab) -> Report:
    """A burst to calibrate by, then the trace, `rounds` times with other requests of it, each simulated too."""
    prompts, drawn = lab.prompts(), random.Random(lab.seed)
    times, lengths = recording(lab.workloads, lab.seed)
    rounds: list[tuple[list[Seen], list[Seen]]] = []
    devices: list[Device] = []
    async with started(lab.model, lab.log("suite")) as suite, SchedulerAdmin(suite.scheduler) as admin:
        lab.say(f"a burst of {BURST}")
        burst = [_arrival(drawn, 0.0, *drawn.choice(lengths)) for _ in range(BURST)]
        await serve(lab, suite, prompts, burst)  # the first learns the step times
        before = await serve(lab, suite, prompts, burst)
        capacity = steady_rate(seen.ended_s for seen in before)
        for number in range(lab.rounds):
            chosen = excerpt(times, lengths, LOAD * capacity, WINDOWS * lab.window_s, drawn)
            arrivals = [_arrival(drawn, *each) for each in chosen]
            lab.say(f"round {number + 1} of {lab.rounds}: {len(arrivals)} requests at {LOAD * capacity:.2f} a second")
            measured = await serve(lab, suite, prompts, arrivals)
            after = await serve(lab, suite, prompts, burst)
            status = await admin.status()
            lasted_s = (_last(before) + _last(after)) / 2
            device = calibrated(status.step_models[0], status.executors[0], burst, lasted_s)
            rounds.append((measured, simulated(device, arrivals)))
            devices.append(device)
            before = after
    return report(lab, rounds, devices, capacity)


def _arrival(drawn: random.Random, at_s: float, prompt_tokens: int, answer_tokens: int) -> Arrival:
    return Arrival(at_s, QosClass[draw_class(drawn).upper()], "", prompt_tokens, answer_tokens, answer_tokens)


async def serve(lab: Lab, suite: Suite, prompts: Prompts, arrivals: Sequence[Arrival]) -> list[Seen]:
    """Each request sent at its time, and its queue span read when all have ended. Raises Unavailable if one is lost."""
    loop = asyncio.get_running_loop()
    begun = loop.time() + 0.5
    drawn = [prompts.draw(arrival.prompt_tokens) for arrival in arrivals]

    async def send(arrival: Arrival, prompt: Sequence[int]) -> tuple[str, Seen]:
        await asyncio.sleep(begun + arrival.time_s - loop.time())
        asked, first, total, request_id = loop.time(), 0.0, 0, ""
        async for piece in suite.client.stream(
            suite.model,
            prompt,
            qos=_name(arrival.qos_class),
            max_tokens=arrival.output_tokens,
            ignore_eos=True,
        ):
            first, total, request_id = first or loop.time(), total + len(piece.token_ids), piece.request_id
        ended = loop.time()
        return request_id, Seen(_name(arrival.qos_class), 0.0, first - asked, ended - asked, ended - begun, total)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(send(*each)) for each in zip(arrivals, drawn, strict=True)]
    await asyncio.sleep(SETTLE_S)
    with open_reader(default_database(lab.home)) as reader:
        return [_with_wait(reader, *task.result()) for task in tasks]


def _with_wait(reader: SpanReader, request_id: str, seen: Seen) -> Seen:
    waits = [span.duration_ns / 1e9 for span in reader.find(request_id) if span.name == signals.SCHEDULER_QUEUE]
    if not waits:
        raise Unavailable(f"the queue span of {request_id} was not kept")
    return Seen(**{**asdict(seen), "wait_s": sum(waits)})


def _name(qos: QosClass) -> Qos:
    return cast(Qos, qos.name.lower())


def calibrated(steps: StepModel, executor: ExecutorStatus, burst: Sequence[Arrival], lasted_s: float) -> Device:
    """The executor as the scheduler knows it, its step times stretched until the burst lasts as long as it did."""
    times = StepTimes(steps.step_ms / 1000, steps.decode_ms / 1000, steps.prefill_token_ms / 1000, 0.0)
    low, high = 0.25, 4.0
    for _ in range(16):
        middle = (low * high) ** 0.5
        device = _device(executor, times, middle)
        if _last(simulated(device, burst)) < lasted_s:
            low = middle
        else:
            high = middle
    return _device(executor, times, (low * high) ** 0.5)


def _last(seen: Sequence[Seen]) -> float:
    """Seconds until the last has ended."""
    return max(each.ended_s for each in seen)


def _device(executor: ExecutorStatus, times: StepTimes, factor: float) -> Device:
    stretched = StepTimes(*(factor * each for each in astuple(times)))
    return Device(num_slots=executor.num_slots, num_blocks=executor.num_blocks, times=stretched)


def simulated(device: Device, arrivals: Sequence[Arrival]) -> list[Seen]:
    """The same requests in virtual time. Raises Unavailable if one does not finish."""
    duration_s = max(arrival.time_s for arrival in arrivals)
    done = World(Setup(LIMITS, (device,), duration_s), arrivals).run()
    return [
        Seen(_name(job.qos_class), job.waited_s, job.ttft_s, job.total_s, job.arrived_at + job.total_s, job.generated)
        for job in done.jobs
        if job.waited_s is not None and job.ttft_s is not None and job.total_s is not None
    ]


def report(
    lab: Lab, rounds: Sequence[tuple[list[Seen], list[Seen]]], devices: Sequence[Device], capacity: float
) -> Report:
    """Over all rounds: throughput of all requests until the last has ended, mean waits of each class."""
    systems = {SUITE: [suite for suite, _ in rounds], SIMULATED: [simulation for _, simulation in rounds]}
    waits = {system: _mean(each, None) for system, each in systems.items()}
    rates = {system: _throughput(each) for system, each in systems.items()}
    firsts = {system: _mean(each, None, "ttft_s") for system, each in systems.items()}
    rows = [
        Row(
            system,
            {
                "tokens/s": f"{rates[system]:,.0f}",
                "mean wait s": f"{waits[system]:.2f}",
                **{f"{name} s": f"{_mean(each, name):.2f}" for name, _ in CLASSES},
                "TTFT s": f"{firsts[system]:.2f}",
                "requests": f"{sum(map(len, systems[system])):,}",
            },
        )
        for system, each in systems.items()
    ]
    return Report(
        "agree",
        [
            Figure("agree.throughput_gap", _gap(rates[SIMULATED], rates[SUITE])),
            Figure("agree.wait_gap", _gap(waits[SIMULATED], waits[SUITE])),
            Figure("agree.ttft_gap", _gap(firsts[SIMULATED], firsts[SUITE])),
        ],
        rows,
        settings=lab.settings()
        | {
            "trace": TRACE,
            "load": LOAD,
            "capacity_rps": capacity,
            "shrink": SHRINK,
            "devices": [asdict(device) for device in devices],
        },
        raw={system: [[asdict(seen) for seen in r] for r in each] for system, each in systems.items()},
        notes=[
            "waits are from the scheduler's queue spans; a class's wait is until an executor was told of the request",
            *(_told(device.times) for device in devices),
        ],
    )


def _told(times: StepTimes) -> str:
    base_ms, decode_ms, prefill_ms, _ = (1000 * each for each in astuple(times))
    return f"step times: {base_ms:.2f} ms + {decode_ms:.3f} ms a decode + {prefill_ms:.3f} ms a prefill token"


def _throughput(rounds: Sequence[Sequence[Seen]]) -> float:
    tokens = sum(seen.num_tokens for each in rounds for seen in each)
    return tokens / sum(map(_last, rounds))


def _mean(rounds: Sequence[Sequence[Seen]], qos: str | None, what: str = "wait_s") -> float:
    values = [getattr(seen, what) for each in rounds for seen in each if qos in (None, seen.qos)]
    return sum(values) / len(values) if values else float("nan")


def _gap(value: float, other: float) -> float:
    """As a share of the other."""
    return abs(value - other) / other if other else float("nan")
