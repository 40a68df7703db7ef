"""A text's trace: one over all services, linked both ways with the batch that it ran in."""

from pathlib import Path

import pytest

from headrace.chassis import signals
from headrace.chassis.config import load_settings
from headrace.client import AsyncClient
from headrace.core.errors import InvalidRequest
from headrace.models import reference
from headrace.standalone.span_reader import wait_for_trace
from headrace.standalone.spans import default_database
from headrace.standalone.suite import suite

ARRIVAL_S = 30.0
ANY_PORT = "127.0.0.1:0"


async def test_one_trace_a_call_and_its_batch_beside_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    listening = {name: {"listen": ANY_PORT} for name in ("gateway", "scheduler", "executor", "encoder")}
    settings = load_settings(
        overrides=listening
        | {
            "models": {"home": home},
            "executor": {"listen": ANY_PORT, "engine": "reference", "models": [reference.NAME]},
            "encoder": {"listen": ANY_PORT, "model": "tiny", "threads": 1},
        }
    )
    async with suite(settings, True, lambda service, address: None) as running:
        async with AsyncClient(running.gateway) as client:
            await client.embed("tiny", "water", request_id="one")
            with pytest.raises(InvalidRequest):
                await client.classify("tiny", "water", request_id="two")
        spans = {span.name: span for span in await wait_for_trace(default_database(home), "one", ARRIVAL_S)}
        refused = await wait_for_trace(default_database(home), "two", ARRIVAL_S)
    assert {name: span.service for name, span in spans.items()} == {
        signals.GATEWAY_EMBED: "headrace-gateway",
        signals.PREPROCESS_PREPARE: "headrace-gateway",
        signals.SCHEDULER_QUEUE: "headrace-scheduler",
        signals.SCHEDULER_BATCH: "headrace-scheduler",
        signals.EXECUTOR_ENCODE: "headrace-encoder",
        signals.EXECUTOR_BATCH: "headrace-encoder",
    }
    root, text, batch = (
        spans[name] for name in (signals.GATEWAY_EMBED, signals.EXECUTOR_ENCODE, signals.EXECUTOR_BATCH)
    )
    for name in (signals.PREPROCESS_PREPARE, signals.SCHEDULER_QUEUE, signals.EXECUTOR_ENCODE):
        assert spans[name].parent_id == root.span_id
    assert (batch.trace_id, batch.span_id) in text.links
    assert (text.trace_id, text.span_id) in batch.links
    assert batch.attributes[signals.BATCH_SIZE] == 1
    assert batch.attributes[signals.BATCH_TOKENS] == len("water") + 2
    assert batch.attributes[signals.BATCH_PADDING] == 8 - (len("water") + 2)
    assert text.attributes[signals.PADDED_TOKENS] == 8
    assert [span.name for span in refused if span.error] == [signals.GATEWAY_CLASSIFY]
