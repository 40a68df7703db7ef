"""Texts that share a row: the vectors that they have alone, whoever their neighbours are; and who never shares one."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from headrace.api.types.v1.types_pb2 import TraceContext
from headrace.client import AsyncClient
from headrace.core.request import Precision
from headrace.executor.encoding.lengths import padded_length
from headrace.executor.encoding.pooling import pooled
from headrace.executor.encoding.rectangles import rectangles
from headrace.executor.encoding.task import Pooling, Task
from headrace.executor.engines.encoder import EncoderSpec
from headrace.executor.engines.openvino_encoder import OpenVinoEncoder
from headrace.executor.engines.packed_graph import pack_rows
from headrace.models.repository import Repository

FURTHEST = {"fp32": 1e-6, "bf16": 1e-3, "int8": 2e-3}
"""One minus the cosine between a text's vector alone and in company."""


def task(token_ids: Sequence[int], row_tokens: int = 0, first_tokens: int | None = None) -> Task:
    return Task(
        session=1,
        request_id="r",
        token_ids=np.array(token_ids, np.uint32),
        first_tokens=len(token_ids) if first_tokens is None else first_tokens,
        batch_id="b",
        batch_size=1,
        row_tokens=row_tokens,
        scores=False,
        pooling=Pooling.MEAN,
        normalize=True,
        dimensions=0,
        deadline=None,
        trace=TraceContext(),
        batch_trace=TraceContext(),
        received_ns=0,
    )


def spec(packs: bool, context_tokens: int = 64) -> EncoderSpec:
    return EncoderSpec("e", Precision.FP32, context_tokens, 100, 2, has_head=False, packs=packs)


def test_rows_are_filled_and_say_which_token_is_whose() -> None:
    tasks = [task([1, 2, 3], 8, first_tokens=1), task([4] * 5, 8), task([5] * 7, 8)]
    (only,) = rectangles(tasks, spec(packs=True), batch_rows=4)
    token_ids, token_types, segments, positions = only.arrays()
    assert token_ids.tolist() == [[5] * 7 + [0], [4] * 5 + [1, 2, 3]]
    assert token_types.tolist() == [[0] * 8, [0] * 6 + [1, 1]]
    assert segments.tolist() == [[1] * 7 + [0], [1] * 5 + [2] * 3]
    assert positions.tolist() == [[*range(7), 0], [*range(5), 0, 1, 2]]


def test_a_row_is_no_longer_than_the_context_whatever_the_scheduler_says() -> None:
    tasks = [task([1] * 30, 10**9) for _ in range(5)]
    found = rectangles(tasks, spec(packs=True), batch_rows=2)
    assert [(len(each.rows), each.length) for each in found] == [(2, 64), (1, 32)]
    assert sum(len(each.tasks) for each in found) == 5


def test_without_packing_each_text_has_a_row_of_its_own_length() -> None:
    tasks = [task([1] * 3, 64), task([1] * 20, 64), task([1] * 4, 64)]
    found = rectangles(tasks, spec(packs=False), batch_rows=4)
    assert [(len(each.rows), each.length) for each in found] == [(2, 8), (1, 24)]


@pytest.fixture(scope="module", params=["fp32", "int8", "auto"])
def encoder(home: Path, request: pytest.FixtureRequest) -> OpenVinoEncoder:
    return OpenVinoEncoder(Repository(home).get("tiny"), precision=request.param, threads=1, packing=True)


def vectors(encoder: OpenVinoEncoder, tasks: Sequence[Task], pooling: Pooling) -> dict[int, np.ndarray]:
    """Of each task by its identity."""
    found = {}
    for rectangle in rectangles(tasks, encoder.spec, batch_rows=16):
        output = encoder.forward(*rectangle.arrays())
        for each, row, start in rectangle.places():
            hidden = output[row, start : start + len(each.token_ids)]
            found[id(each)] = pooled(hidden, pooling, normalize=True, dimensions=0)
    return found


@pytest.mark.parametrize("pooling", Pooling)
def test_a_text_has_the_same_vector_alone_and_beside_any_neighbour(encoder: OpenVinoEncoder, pooling: Pooling) -> None:
    assert encoder.spec.packs
    random_ = random.Random(4)
    texts = [task([random_.randrange(300) for _ in range(random_.randint(1, 60))], 128) for _ in range(24)]
    alone = {id(each): vectors(encoder, [each], pooling)[id(each)] for each in texts}
    furthest = FURTHEST[encoder.spec.precision.name.lower()]
    for _ in range(3):
        random_.shuffle(texts)
        together = texts[: random_.randint(8, 24)]
        packed = rectangles(together, encoder.spec, batch_rows=16)
        assert sum(len(each.rows) for each in packed) < len(together)
        for name, vector in vectors(encoder, together, pooling).items():
            assert 1 - float(vector @ alone[name]) < furthest


def test_alone_it_has_the_vector_of_the_graph_that_does_not_pack(home: Path) -> None:
    entry = Repository(home).get("tiny")
    packing = OpenVinoEncoder(entry, precision="fp32", threads=1, packing=True)
    plain = OpenVinoEncoder(entry, precision="fp32", threads=1)
    assert not plain.spec.packs
    texts = [task([7, 8, 9], 64), task(list(range(40)), 64, first_tokens=10)]
    (packed,), expected = rectangles(texts, packing.spec, 4), rectangles(texts, plain.spec, 4)
    output = packing.forward(*packed.arrays()).copy()
    for each, row, start in packed.places():
        (own,) = [rectangle for rectangle in expected if rectangle.tasks[0] is each]
        assert own.length == padded_length(len(each.token_ids), 128)
        hidden = plain.forward(*own.arrays())[0, : len(each.token_ids)]
        assert np.allclose(output[row, start : start + len(each.token_ids)], hidden, atol=1e-4)


def test_a_model_with_a_head_is_never_packed(home: Path) -> None:
    assert not OpenVinoEncoder(Repository(home).get("moods"), threads=1, packing=True).spec.packs


def test_a_graph_that_is_not_known_is_left_as_it_is() -> None:
    ids = op.parameter([-1, -1], ov.Type.i64, name="input_ids")
    mask = op.parameter([-1, -1], ov.Type.i64, name="attention_mask")
    for parameter in (ids, mask):
        parameter.output(0).set_names({parameter.get_friendly_name()})
    model = ov.Model([op.multiply(ids, mask)], [ids, mask], "other")
    assert not pack_rows(model)
    assert [each.output(0).get_any_name() for each in model.get_parameters()] == ["input_ids", "attention_mask"]


async def test_through_all_services_packed_vectors_are_those_of_the_model(
    suite: Callable[..., Any], expected: Callable[..., np.ndarray]
) -> None:
    texts = ["a", "water wheel", "the river runs", "x" * 30, "y" * 61, "z" * 70, "longer and longer " * 6] * 6
    async with (
        suite("tiny", precision="fp32", packing=True, batch_rows=4) as running,
        AsyncClient(running.gateway) as client,
    ):
        answers = await asyncio.gather(*(client.embed("tiny", texts) for _ in range(2)))
        single = await client.embed("tiny", "a")
    for answer in (*answers, single):
        for text, vector in zip(texts, answer.vectors, strict=False):
            assert 1 - float(np.dot(vector, expected(text)) / np.linalg.norm(vector)) < 1e-5
    assert [len(answer.vectors) for answer in answers] == [len(texts)] * 2
