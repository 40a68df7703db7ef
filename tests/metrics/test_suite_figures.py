"""A suite of the reference engine with metrics on: what it is asked shows in its figures, by the names of the list."""

import asyncio
from pathlib import Path

from headrace.chassis.config import load_settings
from headrace.chassis.metric_table.device import MEMORY_BUSY_RATIO, MEMORY_MOVED_BYTES, MEMORY_PEAK_BYTES_PER_SECOND
from headrace.chassis.metric_table.metric import Kind
from headrace.chassis.metric_table.table import TABLE
from headrace.cli.figures import Figures
from headrace.cli.scraping import suite as scraping
from headrace.client import AsyncClient
from headrace.models import reference
from headrace.standalone.services import Service, metered
from headrace.standalone.single import running


async def test_what_a_suite_is_asked_shows_in_its_figures(tmp_path: Path, metrics_port: int) -> None:
    model, port = reference.install(tmp_path).info.name, metrics_port
    settings = load_settings(
        overrides={
            "models": {"home": tmp_path},
            "gateway": {"listen": "127.0.0.1:0"},
            "scheduler": {"listen": "127.0.0.1:0"},
            "executor": {"listen": "127.0.0.1:0", "engine": "reference", "models": [model], "num_slots": 8},
            "encoder": {"model": ""},
            "telemetry": {"metrics_listen": f"127.0.0.1:{port}"},
        }
    )
    async with running(settings) as suite, AsyncClient(suite.gateway) as client:
        before = await asyncio.to_thread(scraping(port))
        answer = await client.generate(model, "abcd", max_tokens=5, qos="realtime", ignore_eos=True, timeout_s=60)
        assert len(answer.token_ids) == 5
        figures = Figures(before, await asyncio.to_thread(scraping(port)), 1.0)
        async with asyncio.timeout(60):
            # the call's end may come after its last message, and a busy service's page may be of before
            while not (figures.grown("requests_total") and figures.grown("scheduling_seconds_total")):
                figures = Figures(before, await asyncio.to_thread(scraping(port)), 1.0)
    assert figures.grown("requests_total", **{"class": "realtime", "model": model, "outcome": "ok"}) == 1
    assert figures.grown("output_tokens_total", **{"class": "realtime"}) == 5
    assert figures.grown("ttft_seconds_count") == 1
    assert figures.grown("queue_wait_seconds_count", **{"class": "realtime"}) == 1
    assert figures.grown("batch_size_sum", model=model) == 1
    assert figures.grown("step_tokens_total", kind="decode") >= 4
    assert figures.grown("step_tokens_total", kind="prefill") >= 3
    assert figures.grown("prepare_seconds_count") == 1
    assert figures.grown("scheduling_seconds_total") > 0
    assert figures.level("executors", state="ready") == 1
    assert figures.level("slots") == figures.level("pool_slots") == settings.executor.num_slots
    known = {
        f"{metric.name}{ending}"
        for metric in TABLE.values()
        for ending in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
    }
    scraped = {name for name, _ in figures.after if name.startswith("headrace_")}
    assert scraped <= known
    unlabelled = {name for name in known if name in TABLE and not TABLE[name].labels}
    elsewhere = {name for name in unlabelled if TABLE[name].services == ("encoder",)}
    of_a_gpu = {each.name for each in (MEMORY_BUSY_RATIO, MEMORY_MOVED_BYTES, MEMORY_PEAK_BYTES_PER_SECOND)}
    assert unlabelled - elsewhere - of_a_gpu <= scraped


def test_each_service_of_a_suite_has_the_port_of_its_place() -> None:
    settings = load_settings(overrides={"telemetry": {"metrics_listen": "127.0.0.1:9470"}})
    listens = [metered(settings, service).telemetry.metrics_listen for service in Service]
    assert listens == [f"127.0.0.1:{9470 + place}" for place in range(len(Service))]
    assert metered(load_settings(), Service.GATEWAY).telemetry.metrics_listen == ""
