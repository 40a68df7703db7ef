"""Text and chats to token ids, under a span, by a bounded number of threads."""

import asyncio
import threading
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.chassis import signals
from headrace.core.errors import InvalidRequest, ModelNotFound
from headrace.gateway.ports import Message, Preparer
from headrace.gateway.ports import TextModels as TextModelsPort
from headrace.models import reference
from headrace.models.repository import Repository
from headrace.preprocess import pipeline as pipeline_module
from headrace.preprocess.inline import InlinePreparer
from headrace.preprocess.pipeline import INLINE_CHARACTERS, open_pipeline
from headrace.preprocess.text_models import TextModels

LONG = "water " * INLINE_CHARACTERS
CONTEXT_TOKENS = reference.CONTEXT_TOKENS


@pytest.mark.parametrize("text", ["water", "wässer 🌊", LONG])
async def test_a_text_is_its_tokens(home: Path, text: str) -> None:
    async with open_pipeline(TextModels(Repository(home)), 2) as pipeline:
        for _ in range(2):  # before and after the model is loaded
            assert bytes((await pipeline.prepare(reference.NAME, text)).tolist()) == text.encode()


async def test_a_chat_is_its_template_filled_in(texts: TextModels) -> None:
    async with open_pipeline(texts, 1) as pipeline:
        token_ids = await pipeline.prepare(reference.NAME, [Message("user", "hi")])
    assert bytes(token_ids.tolist()) == b"user: hi\nassistant: "


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ("", "prompt.text"),
        ("x" * (CONTEXT_TOKENS + 1), "prompt.text"),
        ([Message("user", "x" * CONTEXT_TOKENS)], "chat"),
        ([], "chat.messages"),
    ],
)
async def test_refuses_what_no_context_holds(texts: TextModels, prompt: str | list[Message], field: str) -> None:
    async with open_pipeline(texts, 1) as pipeline:
        with pytest.raises(InvalidRequest) as caught:
            await pipeline.prepare(reference.NAME, prompt)
    assert caught.value.field == field
    assert caught.value.limit


async def test_the_longest_prompt_is_served(texts: TextModels) -> None:
    async with open_pipeline(texts, 1) as pipeline:
        assert len(await pipeline.prepare(reference.NAME, "x" * CONTEXT_TOKENS)) == CONTEXT_TOKENS


async def test_an_unknown_model_is_not_found(texts: TextModels) -> None:
    async with open_pipeline(texts, 1) as pipeline:
        with pytest.raises(ModelNotFound, match="reference"):
            await pipeline.prepare("nobody", "hi")


async def test_a_cancelled_caller_keeps_its_slot_until_its_thread_is_done(
    texts: TextModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, release = threading.Semaphore(0), threading.Event()
    tokenise = pipeline_module.tokenise

    def slow(*args: object) -> object:
        running.release()
        release.wait(30)
        return tokenise(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline_module, "tokenise", slow)
    async with open_pipeline(texts, 1) as pipeline, asyncio.timeout(30):
        first = asyncio.create_task(pipeline.prepare(reference.NAME, LONG[:CONTEXT_TOKENS]))
        await asyncio.to_thread(running.acquire)
        first.cancel()
        second = asyncio.create_task(pipeline.prepare(reference.NAME, LONG[:CONTEXT_TOKENS]))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not running.acquire(blocking=False)  # the one thread is still taken, and nothing queues behind it
        release.set()
        assert len(await second) == len(LONG[:CONTEXT_TOKENS])
        assert first.cancelled()


async def test_the_span_has_the_parent_and_the_count(
    texts: TextModels, tracer_provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    tracer = tracer_provider.get_tracer("test")
    async with open_pipeline(texts, 1) as pipeline:
        preparer: Preparer = InlinePreparer(pipeline, tracer)
        with tracer.start_as_current_span("gateway.generate", Context()) as parent:
            await preparer.prepare("r1", reference.NAME, "hello", trace.set_span_in_context(parent, Context()))
        with pytest.raises(InvalidRequest):
            await preparer.prepare("r2", reference.NAME, "", Context())
    good, _, bad = spans.get_finished_spans()
    assert good.name == bad.name == signals.PREPROCESS_PREPARE
    assert good.parent is not None
    assert good.parent.span_id == parent.get_span_context().span_id
    assert good.attributes is not None
    assert (good.attributes[signals.PROMPT_TOKENS], good.attributes[signals.REQUEST_ID]) == (5, "r1")
    assert bad.parent is None
    assert bad.attributes is not None
    assert bad.attributes[signals.ERROR_TYPE] == InvalidRequest.reason
    assert not bad.status.is_ok


def test_a_model_that_does_not_load_does_not_keep_the_others_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (reference.install(tmp_path).folder.parent / "broken").mkdir()
    (tmp_path / "models" / "broken" / "model.toml").write_text("kind = ")
    texts = TextModels(Repository(tmp_path))
    texts.warm_up()
    assert texts.loaded(reference.NAME)
    assert "'broken'" in caplog.text


def test_a_template_may_name_the_special_tokens(tmp_path: Path) -> None:
    folder = reference.install(tmp_path).folder
    (folder / "chat_template.jinja").write_text("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}")
    turns = [Message("user", "hi")]
    assert TextModels(Repository(tmp_path)).load(reference.NAME).template.render(turns) == "|<eos>|"
    (folder / "tokenizer_config.json").write_text('{"bos_token": {"content": "<s>"}, "pad_token": "<pad>"}')
    assert TextModels(Repository(tmp_path)).load(reference.NAME).template.render(turns) == "<s>|<eos>|<pad>"


def test_text_models_are_what_the_gateway_asks_for(texts: TextModels) -> None:
    port: TextModelsPort = texts
    assert list(port.names()) == [reference.NAME]
    assert port.info(reference.NAME).vocab_size == reference.VOCAB_SIZE
    assert port.text_stream(reference.NAME).push([104, 105]) == "hi"
    for ask in (port.info, port.text_stream):
        with pytest.raises(ModelNotFound):
            ask("nobody")
    assert texts.load(reference.NAME) is texts.load(reference.NAME)
