"""What an executor's spans say of one sequence: how it ended, when it stood still, which of its steps came late."""

import time

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from headrace.api.types.v1.types_pb2 import TraceContext
from headrace.chassis import signals
from headrace.core.errors import EngineFault
from headrace.core.model import ModelInfo
from headrace.core.request import FinishReason, Precision, Sampling
from headrace.executor import stepper
from headrace.executor.engines.protocol import StepPlan
from headrace.executor.engines.reference import ReferenceEngine, ReferenceOutput
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.memory.engine_memory import EngineMemory
from headrace.executor.residents import Residents
from headrace.executor.sequence import Job
from headrace.executor.spans import record
from headrace.executor.step_result import Delta, StepResult
from headrace.executor.stepper import Stepper

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))


class Engine(ReferenceEngine):
    """Takes `slow_s` for a step, or fails in it."""

    slow_s = 0.0
    fails = False

    def forward(self, plan: StepPlan) -> ReferenceOutput:
        if self.fails:
            raise RuntimeError("the device is gone")
        time.sleep(self.slow_s)
        return super().forward(plan)


class Loop:
    """A step loop without its thread, of one request; `spans` are what came of it."""

    def __init__(self, max_tokens: int = 300) -> None:
        self.engine = Engine(INFO, 512)
        pool = BlockPool(512, self.engine.spec.block_tokens, memory=EngineMemory(self.engine))
        self.residents = Residents(self.engine.spec, pool, 4, INFO.eos_token_ids)
        self.stepper = Stepper(self.engine, self.residents, pool, INFO.eos_token_ids, 64)
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
        self.residents.accept(
            Job(1, "r", np.array([72, 105], np.uint32), sampling, trace=(TraceContext(), TraceContext(), "b"))
        )
        self._deltas: list[Delta] = []

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            result = StepResult()
            self.stepper.step(result)
            self._deltas += result.deltas

    def spans(self) -> dict[str, ReadableSpan]:
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        for delta in self._deltas:
            record(provider.get_tracer("test"), "e", Precision.FP32, delta, time.time_ns())
        return {span.name: span for span in exporter.get_finished_spans()}


def events_of(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def test_chunks_steps_and_the_engine_s_time_are_told() -> None:
    loop = Loop(max_tokens=3)
    loop.engine.slow_s = 0.002
    loop.step(3)
    spans = loop.spans()
    prefill, decode = (spans[name].attributes or {} for name in (signals.EXECUTOR_PREFILL, signals.EXECUTOR_DECODE))
    assert prefill[signals.NUM_CHUNKS] == 1
    assert decode[signals.NUM_STEPS] == 3
    assert float(prefill[signals.ENGINE_MS]) >= 2  # type: ignore[arg-type]
    assert float(decode[signals.ENGINE_MS]) >= 4  # type: ignore[arg-type]
    assert decode[signals.GENAI_FINISH_REASONS] == ("length",)


def test_a_step_that_comes_late_is_an_event_of_who_was_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepper, "_KNOWN_STEPS", 8)
    loop = Loop(max_tokens=20)
    loop.step(15)
    loop.engine.slow_s = 0.5
    loop.step()
    loop.engine.slow_s = 0.0
    loop.step(4)
    decode = loop.spans()[signals.EXECUTOR_DECODE]
    assert signals.LATE_STEP in events_of(decode)
    late = max(float(event.attributes[signals.STEP_MS]) for event in decode.events if event.attributes)  # type: ignore[arg-type]
    assert late >= 500


def test_displaced_and_resumed_are_events_in_that_order() -> None:
    loop = Loop(max_tokens=6)
    loop.step(2)
    for _ in range(2):
        loop.residents.pause("r", drop_kv=False)
        loop.residents.take_up(everybody=True)
    loop.step(4)
    decode = loop.spans()[signals.EXECUTOR_DECODE]
    assert events_of(decode) == [signals.DISPLACED, signals.RESUMED] * 2


def test_an_engine_that_fails_before_the_first_token_ends_the_prefill() -> None:
    loop = Loop()
    loop.engine.fails = True
    loop.step()
    spans = loop.spans()
    assert set(spans) == {signals.EXECUTOR_PREFILL}
    assert spans[signals.EXECUTOR_PREFILL].status.status_code is StatusCode.ERROR
    assert (spans[signals.EXECUTOR_PREFILL].attributes or {})[signals.ERROR_TYPE] == EngineFault.reason


def test_an_engine_that_fails_in_an_answer_ends_the_decode() -> None:
    loop = Loop()
    loop.step(3)
    loop.engine.fails = True
    loop.step()
    spans = loop.spans()
    assert spans[signals.EXECUTOR_PREFILL].status.status_code is StatusCode.UNSET
    assert spans[signals.EXECUTOR_DECODE].status.status_code is StatusCode.ERROR
    assert (spans[signals.EXECUTOR_DECODE].attributes or {})[signals.NUM_STEPS] == 3


def test_one_that_its_gateway_gave_up_is_cancelled_and_no_error() -> None:
    loop = Loop()
    loop.step(3)
    result = StepResult()
    loop.residents.cancel(1, "r", result)
    loop._deltas += result.deltas
    decode = loop.spans()[signals.EXECUTOR_DECODE]
    assert decode.status.status_code is StatusCode.UNSET
    assert (decode.attributes or {})[signals.GENAI_FINISH_REASONS] == (FinishReason.CANCELLED.name.lower(),)
