"""A device's event that does not come: counted, on the requests' spans, and past its bound the executor leaves while
its requests go on elsewhere."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider

from headrace.api.types.v1.types_pb2 import TraceContext
from headrace.chassis import signals
from headrace.chassis.config import load_settings
from headrace.chassis.metrics import Metrics
from headrace.client import AsyncClient
from headrace.core.errors import DeviceFault, Unavailable
from headrace.core.model import ModelInfo
from headrace.core.request import Precision, Sampling
from headrace.executor import app as executor_app
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.fake.driver import FakeCuda
from headrace.executor.cuda.memory import CudaMemory
from headrace.executor.cuda.streams import Event, Stream
from headrace.executor.engines.protocol import StepPlan
from headrace.executor.engines.reference import ReferenceEngine, ReferenceOutput, expected_answer
from headrace.executor.event_wait import EventWait, Overdue
from headrace.executor.memory.cuda_arena import CudaArena
from headrace.executor.meters import DecoderMeters
from headrace.executor.sequence import Job
from headrace.executor.spans import record
from headrace.executor.step_result import Delta, StepResult
from headrace.executor.worker import Worker
from headrace.models import reference
from headrace.standalone.readiness import await_serving
from headrace.standalone.single import running

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))
PATIENCE_S = 60


class DeviceEngine(ReferenceEngine):
    """On a fake device: each step gives it work, and waits for the event behind that.

    Step number `slow_at` takes `slow_s` of the device's time; from step number `stalls_at` on no event comes."""

    def __init__(self, *, slow_at: int = -1, slow_s: float = 0.0, stalls_at: int = -1) -> None:
        super().__init__(INFO, 1024)
        self.fake = FakeCuda()
        self._device = CudaDevice(self.fake)
        self._stream, self._event = Stream(self._device), Event(self._device)
        self._arena = CudaArena(CudaMemory(self._device), 1)
        self._arena.map_range(0, 1)
        self._waits: EventWait | None = None
        self._slow_at, self._slow_s, self._stalls_at = slow_at, slow_s, stalls_at
        self.num_steps = 0

    def report_overdue(self, overdue: Overdue) -> None:
        self._waits = EventWait(overdue, now=self.fake.now, sleep=self.fake.advance)

    def forward(self, plan: StepPlan) -> ReferenceOutput:
        assert self._waits is not None
        output = super().forward(plan)
        duration_s = self._slow_s if self.num_steps == self._slow_at else 1e-4
        self.fake.stall(self._stream.number, self.num_steps == self._stalls_at)
        address = self._arena.address
        number = self._stream.number
        self._device.call(self.fake.launch, number, duration_s, (address, 8), address, lambda data: data)
        self._stream.record(self._event)
        self._waits.wait(self._event, "a step", plan.predicted_s)
        self.num_steps += 1
        return output

    def close(self) -> None:
        super().close()
        for each in (self._event, self._stream, self._arena, self._device):
            each.close()
        assert self.fake.leaks() == []


class Ran:
    """One request of 100 tokens on a worker over the engine, to its end: deltas, errors, counters, span events."""

    def __init__(self, engine: DeviceEngine) -> None:
        self.metrics = Metrics("executor")
        meters = DecoderMeters(self.metrics, engine.spec, 0)
        self.deltas: list[Delta] = []
        self.errors: list[Exception] = []
        ended = threading.Event()

        def deliver(result: StepResult) -> None:
            self.deltas.extend(result.deltas)
            if result.finished:
                ended.set()

        worker = Worker(
            engine,
            (256,),
            num_slots=4,
            step_tokens=16,
            deliver=deliver,
            failed=self.errors.append,
            stepped=meters.stepped,
            overdue=meters.overdue,
        )
        trace = (TraceContext(), TraceContext(), "batch")
        sampling = Sampling(max_tokens=100, ignore_eos=True)
        with worker:
            worker.submit(Job(1, "asked", np.array([72, 105], np.uint32), sampling, trace=trace))
            assert ended.wait(PATIENCE_S)
        engine.close()

    @property
    def tokens(self) -> list[int]:
        return [delta.choice.token_id for delta in self.deltas if delta.choice is not None]

    def counted(self, lateness: str) -> float | None:
        return self.metrics.registry.get_sample_value("headrace_overdue_waits_total", {"lateness": lateness})

    def span_events(self) -> list[SpanEvent]:
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        for delta in self.deltas:
            record(provider.get_tracer("test"), "executor", Precision.FP32, delta, 2**62)
        return [event for span in exporter.get_finished_spans() for event in span.events]


def test_steps_in_time_count_nothing() -> None:
    ran = Ran(DeviceEngine())
    assert [ran.counted("late"), ran.counted("fault")] == [0, 0]
    assert ran.tokens == expected_answer([72, 105], 100)
    assert ran.errors == []
    assert ran.span_events() == []


def test_a_late_event_is_told_and_the_answer_is_right() -> None:
    ran = Ran(DeviceEngine(slow_at=90, slow_s=3.0))
    assert [ran.counted("late"), ran.counted("fault")] == [1, 0]
    assert ran.tokens == expected_answer([72, 105], 100)
    assert ran.errors == []
    (event,) = ran.span_events()
    assert event.name == signals.OVERDUE_WAIT
    assert event.attributes is not None
    assert event.attributes[signals.WAIT_FOR] == "a step"
    assert event.attributes[signals.WAIT_LATENESS] == "late"
    waited_ms, predicted_ms = event.attributes[signals.WAITED_MS], event.attributes[signals.WAIT_PREDICTED_MS]
    assert isinstance(waited_ms, float)
    assert isinstance(predicted_ms, float)
    assert waited_ms > 4 * predicted_ms


def test_an_event_that_never_comes_ends_the_loop() -> None:
    ran = Ran(DeviceEngine(stalls_at=90))
    assert [ran.counted("late"), ran.counted("fault")] == [1, 1]
    assert [type(error) for error in ran.errors] == [DeviceFault]
    assert ran.tokens == expected_answer([72, 105], 90)
    fault = ran.deltas[-1].error
    assert isinstance(fault, DeviceFault)
    assert isinstance(fault, Unavailable), "so that the gateway goes on elsewhere"
    assert [event.attributes[signals.WAIT_LATENESS] for event in ran.span_events() if event.attributes] == [
        "late",
        "fault",
    ]


async def test_requests_go_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor joins whose device stalls: it leaves, and every caller has the answer that the other gives."""
    reference.install(tmp_path)
    anywhere = {"listen": "127.0.0.1:0"}
    settings = load_settings(
        overrides={
            "models": {"home": tmp_path},
            "transport": {"drain_s": 1},
            "scheduler": anywhere,
            "executor": anywhere | {"engine": "reference", "models": [reference.NAME]},
            "encoder": {"model": ""},
            "gateway": anywhere,
        }
    )
    prompts = [f"prompt {number}" for number in range(8)]

    async def ask(client: AsyncClient) -> list[str]:
        calls = [client.generate(reference.NAME, each, max_tokens=40, ignore_eos=True) for each in prompts]
        return [answer.text for answer in await asyncio.gather(*calls)]

    async with asyncio.timeout(PATIENCE_S), running(settings) as suite, AsyncClient(suite.gateway) as client:
        expected = await ask(client)
        engines: list[DeviceEngine] = []

        def load(own: object, entry: object) -> DeviceEngine:
            engines.append(DeviceEngine(stalls_at=10))
            return engines[-1]

        monkeypatch.setattr(executor_app, "load_engine", load)
        joined = asyncio.Event()

        async def join() -> None:
            own = settings.executor.model_copy(update={"scheduler": suite.addresses["scheduler"]})
            tracer = NoOpTracerProvider().get_tracer("test")
            async with executor_app.start(settings.model_copy(update={"executor": own}), tracer) as handle:
                await await_serving(handle.address, settings.transport, PATIENCE_S)
                joined.set()
                await asyncio.Event().wait()

        leaving = asyncio.create_task(join())
        await joined.wait()
        while not leaving.done():
            assert await ask(client) == expected
        with pytest.raises(ExceptionGroup) as caught:
            await leaving
        assert caught.value.subgroup(DeviceFault) is not None
        assert engines[0].num_steps == 10
        assert await ask(client) == expected
