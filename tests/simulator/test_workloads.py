"""What comes: generated lengths and gaps have the figures that were published, traces are read as they are."""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.simulator.executor import Device
from headrace.simulator.histogram import Histogram as Durations
from headrace.simulator.scenario import parse_scenario
from headrace.simulator.simulate import run
from headrace.simulator.workload.lengths import Fixed, Histogram, Lognormal, Quantiles
from headrace.simulator.workload.processes import Flood, Gamma, OnOff, Poisson
from headrace.simulator.workload.published import PUBLISHED
from headrace.simulator.workload.stream import Stream, Workload
from headrace.simulator.workload.traces import load_trace, workloads_folder

DRAWS = 100_000
LAWS = [(name, part) for name in PUBLISHED for part in ("prompt", "output")]


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize(("name", "part"), LAWS)
def test_generated_lengths_have_the_published_quantiles(name: str, part: str) -> None:
    law: Quantiles = getattr(PUBLISHED[name], part)
    drawn = law.draw(rng(), DRAWS)
    for share, published in ((0.5, law.p50), (0.9, law.p90), (0.99, law.p99)):
        assert np.quantile(drawn, share) == pytest.approx(published, rel=0.05, abs=1)
    assert drawn.min() >= 1


@pytest.mark.parametrize("name", ["azure_llm_2023_conv", "azure_llm_2023_code", "mooncake_synthetic"])
def test_and_their_mean_is_near_the_published_one(name: str) -> None:
    assert PUBLISHED[name].prompt.draw(rng(), DRAWS).mean() == pytest.approx(PUBLISHED[name].prompt.mean, rel=0.15)


def test_other_laws_of_lengths() -> None:
    assert set(Fixed(kind="fixed", tokens=7).draw(rng(), 10)) == {7}
    lognormal = Lognormal(kind="lognormal", p50=100, p90=300).draw(rng(), DRAWS)
    assert np.quantile(lognormal, [0.5, 0.9]) == pytest.approx([100, 300], rel=0.03)
    cells = Histogram(kind="histogram", edges=(1, 101, 201), weights=(1, 3)).draw(rng(), DRAWS)
    assert (cells > 101).mean() == pytest.approx(0.75, abs=0.03)
    assert (cells.min(), cells.max()) == (1, 201)


@pytest.mark.parametrize(
    ("law", "cv"), [(Poisson(kind="poisson", rate_rps=50), 1.0), (Gamma(kind="gamma", rate_rps=50, cv=4), 4.0)]
)
def test_gaps_have_the_rate_and_spread_asked_for(law: Poisson | Gamma, cv: float) -> None:
    times = list(law.times(rng(), 1.0, 10.0, 2010.0))
    gaps = np.diff(times)
    assert len(times) / 2000 == pytest.approx(50, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    assert times[0] >= 10.0
    assert times[-1] < 2010.0


def test_floods_and_pauses() -> None:
    flood = list(Flood(kind="flood", count=4, at_s=2, over_s=2).times(rng(), 1.0, 1.0, 4.9))
    assert flood == [3.0, 3.5, 4.0, 4.5]
    on_off = np.array(list(OnOff(kind="on_off", load=2.0, on_s=1, off_s=3).times(rng(), 100.0, 0.0, 400.0)))
    assert (on_off % 4 < 1).all()
    assert len(on_off) == pytest.approx(200 * 100, rel=0.05)


def write(folder: Path, name: str, text: str) -> None:
    (folder / "traces").mkdir(exist_ok=True)
    (folder / "traces" / name).write_bytes(gzip.compress(text.encode()))


def test_an_azure_trace_is_read(tmp_path: Path) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9305900,396,0\n"
    write(tmp_path, "azure_llm_2023_conv.csv.gz", header + rows)
    trace = load_trace("azure_llm_2023_conv", rng(), duration_s=None, rate_scale=2.0, folder=tmp_path)
    assert trace.times == pytest.approx([0, 2.125])
    assert (trace.prompts.tolist(), trace.outputs.tolist()) == ([374, 396], [44, 1])
    cut = load_trace("azure_llm_2023_conv", rng(), duration_s=2.0, rate_scale=2.0, folder=tmp_path)
    assert len(cut.prompts) == 1


def test_arrivals_recorded_in_steps_are_spread(tmp_path: Path) -> None:
    rows = [(0, 10, 1), (0, 20, 2), (0, 30, 3), (3000, 40, 4)]
    lines = [json.dumps({"timestamp": t, "input_length": i, "output_length": o, "hash_ids": []}) for t, i, o in rows]
    write(tmp_path, "mooncake_conversation.jsonl.gz", "\n".join(lines))
    trace = load_trace("mooncake_conversation", rng(), duration_s=None, rate_scale=1.0, folder=tmp_path)
    assert trace.times == pytest.approx([0, 1, 2, 3])
    assert trace.prompts.tolist() == [10, 20, 30, 40]


def test_servegen_sums_its_clients(tmp_path: Path) -> None:
    header = "model,client,t_s,rate_rps,cv,pattern,arg1,arg2\n"
    rates = "m-small,3,21600,20,1,Gamma,1,1\nm-small,4,21600,5,2,Gamma,1,1\nm-small,3,22200,40,1,Gamma,1,1\n"
    write(tmp_path, "servegen_clients_busiest_day.csv.gz", header + rates + "m-mid,3,21600,999,1,Gamma,1,1\n")
    header = "model,client,t_s,metric,mean,p1,p10,p25,p50,p75,p90,p99,max\n"
    lengths = "m-small,3,21600,input_tokens,9,5,6,7,8,9,10,11,12\nm-small,3,21600,output_tokens,9,2,2,2,2,2,2,2,2\n"
    write(tmp_path, "servegen_lengths_busiest_day.csv.gz", header + lengths)
    trace = load_trace("servegen_m-small", rng(), duration_s=1200.0, rate_scale=0.5, folder=tmp_path)
    assert trace.times is not None
    assert trace.tenants is not None
    assert (np.diff(trace.times) >= 0).all()
    assert ((trace.times < 600).sum(), (trace.times >= 600).sum()) == pytest.approx((7500, 12000), rel=0.06)
    own = np.array([tenant == "client-3" for tenant in trace.tenants])
    assert set(trace.outputs[own]) == {2}
    assert np.median(trace.prompts[own]) == 8
    assert np.median(trace.prompts[~own]) == pytest.approx(PUBLISHED["servegen_m-small"].prompt.p50, rel=0.1)


def test_a_broken_trace_is_named(tmp_path: Path) -> None:
    write(tmp_path, "azure_llm_2023_conv.csv.gz", "a,b\n1,2\n")
    with pytest.raises(ConfigError, match=r"azure_llm_2023_conv\.csv\.gz"):
        load_trace("azure_llm_2023_conv", rng(), duration_s=None, rate_scale=1.0, folder=tmp_path)
    with pytest.raises(ConfigError, match="mooncake_synthetic"):
        load_trace("mooncake_synthetic", rng(), duration_s=None, rate_scale=1.0, folder=tmp_path)


def test_without_the_records_they_are_made_up_and_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_WORKLOADS", str(tmp_path))
    assert workloads_folder() is None
    stream = {"name": "conv", "trace": "azure_llm_2023_conv", "rate_scale": 0.2}
    result, notes = run(parse_scenario({"name": "t", "duration_s": 200, "streams": [stream]}, "t"), "default")
    assert len(result.jobs) == pytest.approx(200 * 0.2 * 5.53, rel=0.2)
    assert "made up, fitted to its published figures" in notes[0]


def workload(duration_s: float, device: Device | None = None, **stream: object) -> Workload:
    streams = (Stream.model_validate({"name": "s", **stream}),)
    return Workload(streams, (device or Device(),), duration_s=duration_s, seed=1, folder=None)


def test_lengths_are_cut_to_the_context() -> None:
    made = workload(
        10.0,
        Device(context_tokens=100),
        arrivals={"kind": "flood", "count": 3},
        prompt={"kind": "fixed", "tokens": 500},
        output={"kind": "fixed", "tokens": 80},
    )
    arrivals = list(made)
    assert {(each.prompt_tokens, each.output_tokens, each.max_output_tokens) for each in arrivals} == {(50, 50, 50)}
    assert made.num_cut == 3


def test_an_answer_ends_where_the_client_bounds_it() -> None:
    made = workload(
        10.0,
        arrivals={"kind": "flood", "count": 3},
        prompt={"kind": "fixed", "tokens": 500},
        output={"kind": "fixed", "tokens": 80},
        max_output_tokens=32,
    )
    assert {(each.output_tokens, each.max_output_tokens) for each in made} == {(32, 32)}
    assert made.num_cut == 0


def test_classes_and_tenants_come_by_share_and_streams_in_order_of_time() -> None:
    common = {
        "arrivals": {"kind": "poisson", "rate_rps": 100},
        "prompt": {"kind": "fixed", "tokens": 5},
        "output": {"kind": "fixed", "tokens": 5},
    }
    specs = (
        {"name": "a", "classes": {"realtime": 1, "batch": 3}},
        {"name": "b", "tenants": {"x": 9, "y": 1}, "start_s": 5, "end_s": 15},
    )
    streams = tuple(Stream.model_validate({**common, **spec}) for spec in specs)
    arrivals = list(Workload(streams, (Device(),), duration_s=20.0, seed=1, folder=None))
    assert all(one.time_s <= other.time_s for one, other in itertools.pairwise(arrivals))
    first = [each for each in arrivals if each.qos_class.name != "NORMAL"]
    second = [each for each in arrivals if each.qos_class.name == "NORMAL"]
    assert sum(each.qos_class.name == "BATCH" for each in first) / len(first) == pytest.approx(0.75, abs=0.04)
    assert sum(each.tenant == "x" for each in second) / len(second) == pytest.approx(0.9, abs=0.04)
    assert all(5 <= each.time_s < 15 for each in second)


def test_durations_keep_their_mean_and_quantiles() -> None:
    durations = Durations()
    for milliseconds in range(1, 1001):
        durations.add(milliseconds / 1000, 2.0)
    assert durations.mean == pytest.approx(0.5005)
    assert durations.quantile(0.5) == pytest.approx(0.5, rel=0.02)
    assert durations.quantile(0.99) == pytest.approx(0.99, rel=0.02)
    assert (durations.longest, Durations().quantile(0.5)) == (1.0, None)
