"""A stream of requests of a scenario, and all streams of it in order of time."""

import heapq
import zlib
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from headrace.core.request import QosClass
from headrace.simulator.executor import Device
from headrace.simulator.workload.arrival import Arrival
from headrace.simulator.workload.lengths import Lengths, Tokens
from headrace.simulator.workload.processes import Process
from headrace.simulator.workload.published import PUBLISHED
from headrace.simulator.workload.recorded import Recorded
from headrace.simulator.workload.spec import Spec
from headrace.simulator.workload.traces import load_trace

USUAL_MAX_OUTPUT_TOKENS = 1024
"""What a client asks for that sets no bound of its own."""

_DRAWN_AT_ONCE = 512
_MEAN_OF = 4096

Share = Annotated[float, Field(gt=0)]


class Stream(Spec):
    """Times by a process or a trace, lengths by two laws or a trace, class and tenant by share.

    A trace with `arrivals` beside it gives lengths alone. `max_output_tokens` is what every request asks for; without
    it 1,024 or, if more, its answer. `deadline_s` goes to the scheduler; after `patience_s` a client that still waits
    goes away.
    """

    name: str = Field(min_length=1)
    classes: dict[str, Share] = Field(default_factory=lambda: {"normal": 1.0}, min_length=1)
    tenants: dict[str, Share] = Field(default_factory=lambda: {"": 1.0}, min_length=1)
    trace: str | None = None
    rate_scale: float = Field(1.0, gt=0, le=1e6)
    arrivals: Process | None = None
    prompt: Lengths | None = None
    output: Lengths | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    deadline_s: float | None = Field(None, gt=0)
    patience_s: float | None = Field(None, gt=0)
    start_s: float = Field(0.0, ge=0)
    end_s: float | None = Field(None, gt=0)

    @field_validator("classes")
    @classmethod
    def _known(cls, classes: dict[str, float]) -> dict[str, float]:
        names = [qos.name.lower() for qos in QosClass]
        if unknown := [name for name in classes if name not in names]:
            raise ValueError(f"no class {', '.join(unknown)}; there are {', '.join(names)}")
        return classes

    @field_validator("trace")
    @classmethod
    def _there(cls, trace: str | None) -> str | None:
        if trace is not None and trace not in PUBLISHED:
            raise ValueError(f"no trace {trace!r}; there are {', '.join(PUBLISHED)}")
        return trace

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.trace is None:
            if missing := [name for name in ("arrivals", "prompt", "output") if getattr(self, name) is None]:
                raise ValueError(f"needs {', '.join(missing)}, or a trace")
        elif self.prompt or self.output:
            raise ValueError("has a trace and lengths of its own, takes one of the two")
        elif self.arrivals is None and PUBLISHED[self.trace].rate_rps is None:
            raise ValueError(f"needs arrivals: {self.trace} has lengths only")
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(f"end_s is {self.end_s:g}, must be above start_s, {self.start_s:g}")
        return self


class Workload:
    """The streams' requests; equal seeds, equal requests. `origins` say where they come from; `num_cut` of those drawn
    were too long for the context and have been cut."""

    def __init__(
        self,
        streams: tuple[Stream, ...],
        devices: tuple[Device, ...],
        *,
        duration_s: float | None,
        seed: int,
        folder: Path | None,
    ) -> None:
        self.num_cut = 0
        self.origins: list[str] = []
        self._context_tokens = min(device.context_tokens for device in devices)
        self._devices = devices
        self._streams = streams
        self._rngs = [np.random.default_rng([seed, zlib.crc32(stream.name.encode())]) for stream in streams]
        self._recorded: list[Recorded | None] = []
        for stream, rng in zip(streams, self._rngs, strict=True):
            recorded = None
            if stream.trace is not None:
                left_s = None if duration_s is None else max(0.0, duration_s - stream.start_s)
                recorded = load_trace(stream.trace, rng, duration_s=left_s, rate_scale=stream.rate_scale, folder=folder)
                self.origins.append(f"{stream.name}: {recorded.origin}")
            self._recorded.append(recorded)
        self.duration_s = duration_s if duration_s is not None else self._recorded_s()

    def __iter__(self) -> Iterator[Arrival]:
        """Once: what has been drawn does not come again."""
        parts = zip(self._streams, self._recorded, self._rngs, strict=True)
        return heapq.merge(*(self._of(*part) for part in parts), key=attrgetter("time_s"))

    def _recorded_s(self) -> float:
        ends = [
            stream.start_s + float(recorded.times[-1])
            for stream, recorded in zip(self._streams, self._recorded, strict=True)
            if recorded is not None and recorded.times is not None and len(recorded.times) and stream.arrivals is None
        ]
        return max(ends, default=600.0)

    def _of(self, stream: Stream, recorded: Recorded | None, rng: np.random.Generator) -> Iterator[Arrival]:
        classes, tenants = _Mix(stream.classes, rng), _Mix(stream.tenants, rng)
        end_s = min(stream.end_s or self.duration_s, self.duration_s)
        for time_s, prompt, output, own in self._rows(stream, recorded, rng, end_s):
            if time_s >= end_s and stream.end_s is not None:
                return
            prompt_tokens, output_tokens, most = self._cut(stream, prompt, output)
            self.num_cut += prompt_tokens < prompt or most < min(output, stream.max_output_tokens or output)
            yield Arrival(
                time_s,
                QosClass[classes.draw().upper()],
                own if own is not None else tenants.draw(),
                prompt_tokens,
                output_tokens,
                most,
                stream.deadline_s,
                stream.patience_s,
            )

    def _rows(
        self, stream: Stream, recorded: Recorded | None, rng: np.random.Generator, end_s: float
    ) -> Iterator[tuple[float, int, int, str | None]]:
        """Times, prompts, outputs, and the tenant where the record names it."""
        if stream.arrivals is None:
            if recorded is not None and recorded.times is not None:
                times = (recorded.times + stream.start_s).tolist()
                tenants: Any = recorded.tenants or [None] * len(times)
                yield from zip(times, recorded.prompts.tolist(), recorded.outputs.tolist(), tenants, strict=True)
            return
        lengths = self._lengths(stream, recorded, rng)
        capacity_rps = self._capacity_rps(stream, recorded)
        for time_s in stream.arrivals.times(rng, capacity_rps, stream.start_s, end_s):
            yield time_s, *next(lengths), None

    def _lengths(
        self, stream: Stream, recorded: Recorded | None, rng: np.random.Generator
    ) -> Iterator[tuple[int, int]]:
        while True:
            prompts, outputs = _drawn(stream, recorded, rng, _DRAWN_AT_ONCE)
            yield from zip(prompts.tolist(), outputs.tolist(), strict=True)

    def _capacity_rps(self, stream: Stream, recorded: Recorded | None) -> float:
        """What the fleet can serve of this stream alone, by the mean of what would be drawn."""
        prompts, outputs = _drawn(stream, recorded, np.random.default_rng(0), _MEAN_OF)
        cut = [self._cut(stream, *pair) for pair in zip(prompts.tolist(), outputs.tolist(), strict=True)]
        mean_prompt, mean_output, mean_most = (float(np.mean(column)) for column in zip(*cut, strict=True))
        capacity_rps = 0.0
        for device in self._devices:
            blocks_each = (mean_prompt + mean_most) / device.block_tokens
            together = max(1.0, min(device.num_slots, device.num_blocks / blocks_each))
            capacity_rps += device.times.saturation_rps(mean_prompt, mean_output, together)
        return capacity_rps

    def _cut(self, stream: Stream, prompt: int, output: int) -> tuple[int, int, int]:
        """Prompt, answer, and the longest answer asked for, as they fit the context; at most half of it is answer."""
        half = self._context_tokens // 2
        most = stream.max_output_tokens or max(USUAL_MAX_OUTPUT_TOKENS, output)
        most = min(most, half)
        return min(prompt, self._context_tokens - most), min(output, most), most


def _drawn(stream: Stream, recorded: Recorded | None, rng: np.random.Generator, size: int) -> tuple[Tokens, Tokens]:
    if recorded is not None:
        rows = rng.integers(len(recorded.prompts), size=size)
        return recorded.prompts[rows], recorded.outputs[rows]
    if stream.prompt is None or stream.output is None:
        raise ValueError(f"stream {stream.name} has no lengths")  # the model's validator has seen to it
    return stream.prompt.draw(rng, size), stream.output.draw(rng, size)


class _Mix:
    """Names by share."""

    def __init__(self, shares: Mapping[str, float], rng: np.random.Generator) -> None:
        self._names = list(shares)
        weights = np.array(list(shares.values()))
        self._weights = weights / weights.sum()
        self._rng = rng
        self._drawn: list[int] = []

    def draw(self) -> str:
        if len(self._names) == 1:
            return self._names[0]
        if not self._drawn:
            self._drawn = self._rng.choice(len(self._names), size=_DRAWN_AT_ONCE, p=self._weights).tolist()
        return self._names[self._drawn.pop()]
