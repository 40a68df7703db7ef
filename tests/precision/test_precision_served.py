"""A request's precision end to end: executors advertise their own, the first piece and the spans name the one that
served, and one that is not there is served by the nearest that holds more, or refused."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio

from headrace.chassis import signals
from headrace.chassis.config import Settings, load_settings
from headrace.client import AsyncClient
from headrace.core.errors import NoExecutor
from headrace.core.request import Precision
from headrace.executor.engines.reference import expected_answer
from headrace.models import reference
from headrace.standalone.span_reader import wait_for_trace
from headrace.standalone.spans import default_database
from headrace.standalone.suite import suite

pytestmark = pytest.mark.asyncio(loop_scope="module")
ANYWHERE = "127.0.0.1:0"
BOUND_S = 60.0


def settings_of(home: Path, precision: str, preprocess: str = "inline", **executor: object) -> Settings:
    return load_settings(
        overrides={
            "models": {"home": home},
            "gateway": {"listen": ANYWHERE, "preprocess": preprocess},
            "scheduler": {"listen": ANYWHERE},
            "executor": {"listen": ANYWHERE, "precision": precision, **executor},
            "encoder": {"model": ""},
            "preprocess": {"listen": ANYWHERE},
            "transport": {"drain_s": 5},
        }
    )


@dataclass
class Serving:
    client: AsyncClient
    database: Path
    names: set[str]

    async def generate(self, **options: str) -> tuple[str, list[Precision]]:
        """The answer and each piece's precision."""
        text, seen = "", []
        async for piece in self.client.stream(reference.NAME, "Hi", max_tokens=6, **options):
            text += piece.text
            seen.append(piece.precision)
        return text, seen

    async def spans_of(self, request_id: str) -> dict[str, object]:
        """The precision that the gateway's and the executor's spans of the request name."""
        spans = await wait_for_trace(self.database, request_id, BOUND_S)
        wanted = {signals.GATEWAY_GENERATE, signals.EXECUTOR_PREFILL, signals.EXECUTOR_DECODE}
        return {span.name: span.attributes.get(signals.PRECISION) for span in spans if span.name in wanted}


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[(True, "inline"), (False, "inline"), (True, ANYWHERE), (False, ANYWHERE)],
    ids=["single", "processes", "single-remote", "processes-remote"],
)
async def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """An int8 and an fp32 executor of the reference model, in each layout."""
    single, preprocess = request.param
    home = tmp_path_factory.mktemp("home")
    reference.install(home)
    settings = settings_of(home, "int8,fp32", preprocess, engine="reference", models=[reference.NAME])
    ready: asyncio.Future[tuple[str, set[str]]] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def serve() -> None:  # a task of its own: a fixture's two halves run in two, a suite's must not
        async with suite(settings, single, lambda name, address: None) as running:
            ready.set_result((running.gateway, set(running.addresses)))
            await done.wait()

    with pytest.MonkeyPatch.context() as patch:
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
            patch.delenv(name, raising=False)
        task = asyncio.create_task(serve())
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        try:
            if ready.done():
                address, names = ready.result()
                async with AsyncClient(address) as client:
                    yield Serving(client, default_database(home), names)
        finally:
            done.set()
            await task


@pytest.mark.parametrize(
    ("wish", "by"),
    [
        ("int8", Precision.INT8),
        ("fp32", Precision.FP32),
        ("bf16", Precision.FP32),  # not there: the nearest that holds more
        ("fp16", Precision.FP32),
    ],
)
async def test_the_first_piece_names_what_served_and_the_answer_is_right(
    serving: Serving, wish: str, by: Precision
) -> None:
    text, seen = await serving.generate(precision=wish, request_id=f"as-{wish}")
    assert text == bytes(expected_answer(b"Hi", 6)).decode()
    assert seen[0] is by
    assert set(seen[1:]) <= {Precision.ANY}
    named = by.name.lower()
    assert await serving.spans_of(f"as-{wish}") == {
        signals.GATEWAY_GENERATE: named,
        signals.EXECUTOR_PREFILL: named,
        signals.EXECUTOR_DECODE: named,
    }


@pytest.mark.parametrize(("qos", "by"), [("realtime", Precision.FP32), ("normal", Precision.INT8)])
async def test_without_a_wish_the_rules_choose_among_what_is_there(
    serving: Serving, qos: Literal["realtime", "normal"], by: Precision
) -> None:
    _, seen = await serving.generate(qos=qos)
    assert seen[0] is by


async def test_each_precision_is_a_part_of_its_own(serving: Serving) -> None:
    assert {name for name in serving.names if name.startswith("executor")} == {"executor-int8", "executor-fp32"}


@pytest.mark.parametrize("single", [True, False], ids=["single", "processes"])
@pytest.mark.asyncio(loop_scope="function")
async def test_a_wish_that_nothing_holds_is_refused(tmp_path: Path, single: bool) -> None:
    reference.install(tmp_path)
    settings = settings_of(tmp_path, "int8", engine="reference", models=[reference.NAME])
    settings = settings.model_copy(update={"scheduler": settings.scheduler.model_copy(update={"grace_ms": 0})})
    async with suite(settings, single, lambda name, address: None) as running, AsyncClient(running.gateway) as client:
        with pytest.raises(NoExecutor, match="fp32"):
            await client.generate(reference.NAME, "Hi", max_tokens=2, precision="fp32")
        answer = await client.generate(reference.NAME, "Hi", max_tokens=2, precision="int8")
    assert answer.precision is Precision.INT8
