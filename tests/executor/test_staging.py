"""What copies a request's tokens on their way from the wire to the engine: its sequence, and then each step once."""

import numpy as np

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.core.model import ModelInfo
from headrace.executor.codec import to_job
from headrace.executor.engines.protocol import StepPlan
from headrace.executor.engines.reference import ReferenceEngine, ReferenceOutput
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.memory.pinned import AlignedMemory
from headrace.executor.residents import Residents
from headrace.executor.step_result import StepResult
from headrace.executor.stepper import Stepper

INFO = ModelInfo("m", "decoder", "d", context_tokens=256, vocab_size=300, eos_token_ids=(256,))


class Watched(AlignedMemory):
    """Knows what it has given."""

    def __init__(self) -> None:
        self.given: list[memoryview] = []

    def allocate(self, size_bytes: int) -> memoryview:
        self.given.append(super().allocate(size_bytes))
        return self.given[-1]


class Seeing(ReferenceEngine):
    """Keeps the plans of its steps."""

    def __init__(self) -> None:
        super().__init__(INFO, num_blocks=64)
        self.plans: list[StepPlan] = []

    def forward(self, plan: StepPlan) -> ReferenceOutput:
        self.plans.append(plan)
        return super().forward(plan)


def test_the_wires_bytes_are_read_where_they_are_and_each_step_gathers_into_the_pinned_buffers() -> None:
    prompt = np.arange(1, 41, dtype="<u4").tobytes()
    start = pb.Start(request_id="r", model="m", token_ids=prompt, sampling={"max_tokens": 4, "ignore_eos": True})
    job = to_job(start, 1)
    assert job.prompt_ids.base is not None  # over the message's own bytes

    engine, memory = Seeing(), Watched()
    pool = BlockPool(engine.spec.num_blocks, engine.spec.block_tokens)
    residents = Residents(engine.spec, pool, 4, INFO.eos_token_ids)
    stepper = Stepper(engine, residents, pool, INFO.eos_token_ids, 64, host_memory=memory)
    residents.accept(job)
    result = StepResult()
    while residents.running:
        stepper.step(result)
    [given] = memory.given
    whole = np.frombuffer(given, np.uint8)
    for plan in engine.plans:
        for part in ("token_ids", "past_lens", "subsequence_begins", "block_indices", "block_indices_begins"):
            assert np.shares_memory(getattr(plan, part), whole), part
        assert np.shares_memory(plan.wanted_tokens, whole)
    first, second = engine.plans[:2]
    assert not np.shares_memory(first.token_ids, second.token_ids)  # the engine may still read the last one
    stepper.release()
