"""The bucket scenario: batches and waste on numbers worked out by hand, traces, and the report."""

import gzip
import random
from pathlib import Path

import pytest

from headrace.benchmarks import length_traces as traces
from headrace.benchmarks.bucket_replay import replay, replay_packed
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.scenarios import buckets
from headrace.core.errors import InvalidRequest
from headrace.core.model import ModelInfo
from headrace.models.repository import ModelEntry
from headrace.scheduler.policy.buckets import AdaptiveBuckets, FixedBuckets
from headrace.scheduler.policy.fill import Forming


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    info = ModelInfo("tiny", "decoder", "d", 512, 100, (0,))
    return Lab(tmp_path, ModelEntry(info, tmp_path, "", "", ""), lambda line: None)


def test_full_batches_waste_only_their_padding() -> None:
    padding = replay([10, 20, 64, 40], FixedBuckets(64, width=64), Forming(4, 100))
    assert (padding.real, padding.members, padding.rows, padding.full) == (134, 256, 256, 256)
    assert (padding.num_batches, padding.num_incomplete) == (1, 0)
    assert padding.waits == [3, 2, 1, 0]
    assert padding.waste_full == pytest.approx(1 - 134 / 256)


def test_an_incomplete_batch_goes_with_its_window_and_its_empty_rows_count() -> None:
    # 70 waits two arrivals for company and goes alone, and so it does when the load goes on from the start.
    padding = replay([70, 10, 10, 10, 10], FixedBuckets(64, width=64), Forming(4, 2))
    # [70] goes at 2; [10, 10, 10] opened at 1 goes at 3; [10] opened at 4 goes at 6, where the load has come to
    # 70 and 10: that batch has a member that is not measured, and counts whole.
    assert padding.real == 70 + 30 + 20
    assert padding.members == 128 + 3 * 64 + 2 * 64
    assert padding.rows == 128 + 4 * 64 + 2 * 64
    assert padding.full == 4 * 128 + 4 * 64 + 4 * 64
    assert (padding.num_batches, padding.num_incomplete, padding.num_members) == (3, 3, 6)
    assert sorted(padding.waits) == [0, 1, 2, 2, 2]


def test_packed_rows_hold_several_requests() -> None:
    # 60 + 4 and 50 + 14 fill two rows of 64; then the load goes on, but nobody measured waits.
    padding = replay_packed([60, 50, 4, 14], (64, 128), Forming(2, 100), 64)
    assert (padding.real, padding.members, padding.full) == (128, 128, 128)
    assert (padding.num_batches, padding.num_members, padding.num_incomplete) == (1, 4, 0)
    assert sorted(padding.waits) == [0, 1, 2, 3]


def test_a_packed_batch_goes_with_its_window_and_its_empty_rows_count() -> None:
    padding = replay_packed([10, 128], (64, 128), Forming(4, 1), 64)
    # [10, 128] goes at 1: two rows of 128, two more empty
    assert (padding.real, padding.members, padding.rows, padding.full) == (138, 256, 256, 512)
    assert (padding.num_batches, padding.num_incomplete) == (1, 1)


def test_every_packed_request_leaves_once_and_within_the_window() -> None:
    random_ = random.Random(3)
    lengths = [random_.randint(1, 8192) for _ in range(300)]
    for window in (0, 1, 200):
        padding = replay_packed(lengths, buckets.doubling_edges(64, 8192), Forming(4, window), 64)
        assert len(padding.waits) == len(lengths)
        assert max(padding.waits) <= window
        assert padding.real <= padding.members <= padding.rows <= padding.full


def test_every_request_leaves_once_and_within_the_window() -> None:
    random_ = random.Random(2)
    lengths = [random_.randint(1, 8192) for _ in range(700)]
    for window in (0, 1, 100):
        forming = Forming(16, window, (16,))
        padding = replay(lengths, AdaptiveBuckets(64, 8192, forming, refit_every=50, min_gain=0.0), forming)
        assert len(padding.waits) == len(lengths)
        assert max(padding.waits) <= window
        assert padding.real <= padding.members <= padding.rows <= padding.full


def test_a_rule_hears_of_an_arrival_only_after_that_has_its_bucket() -> None:
    heard: list[tuple[str, int]] = []

    class Spy(FixedBuckets):
        def bucket_of(self, length: int) -> int:
            heard.append(("bucket", length))
            return super().bucket_of(length)

        def observe(self, length: int) -> bool:
            heard.append(("observe", length))
            return super().observe(length)

    replay([1, 2, 3], Spy(64), Forming(1, 5))
    assert heard == [("bucket", 1), ("observe", 1), ("bucket", 2), ("observe", 2), ("bucket", 3)]


def test_a_change_of_edges_regroups_what_waits() -> None:
    # Two of 65 and 120 wait apart once the edge between them appears; the window keeps its meaning.
    forming = Forming(16, 40)
    rule = AdaptiveBuckets(8, 128, forming, refit_every=10)
    padding = replay([65, 120] * 50, rule, forming)
    assert {72, 120} <= set(rule.edges)
    assert len(padding.waits) == 100
    assert max(padding.waits) <= 40


def test_align_waste_is_a_bound() -> None:
    assert buckets.align_waste([32, 64]) == pytest.approx(1 - 96 / 128)
    lengths = buckets.cut([0, 1, 9000, 64])
    assert lengths == [1, 8192, 64]


def test_made_up_traces_have_the_published_percentiles() -> None:
    made_up = traces.length_traces(None, seed=1)
    assert made_up == traces.length_traces(None, seed=1)
    for name, (count, p50, p90, p99) in traces.PUBLISHED.items():
        ordered = sorted(made_up[name])
        assert len(ordered) == count
        for share, wanted in ((0.5, p50), (0.9, p90), (0.99, p99)):
            assert ordered[int(share * count)] == pytest.approx(wanted, rel=0.15)


def _write(folder: Path, name: str, text: str) -> None:
    with gzip.open(folder / name, "wt", encoding="utf-8") as file:
        file.write(text)


def test_recorded_traces_keep_their_order_and_clients_their_weights(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for name in ("conv", "code"):
        _write(folder, f"azure_llm_2023_{name}.csv.gz", "TIMESTAMP,ContextTokens,GeneratedTokens\nt,7,1\nt,3,1\n")
    for name in ("conversation", "synthetic"):
        _write(folder, f"mooncake_{name}.jsonl.gz", '{"input_length": 5}\n{"input_length": 4}\n')
    _write(folder, "arxiv_summarization_lengths.csv.gz", "prompt_tokens,output_tokens\n9,1\n")
    _write(
        folder,
        "servegen_clients_busiest_day.csv.gz",
        "model,client,t_s,rate_rps\nm,a,0,1\nm,a,600,2\nm,b,600,1\nm,a,21600,4\n",
    )
    flat = "model,client,t_s,metric,mean,p1,p10,p25,p50,p75,p90,p99,max\n"
    for client, start, length in (("a", 0, 10), ("b", 0, 20), ("a", 21600, 30)):
        flat += f"m,{client},{start},input_tokens,{length}" + f",{length}" * 8 + "\n"
        flat += f"m,{client},{start},output_tokens,1" + ",1" * 8 + "\n"
    _write(folder, "servegen_lengths_busiest_day.csv.gz", flat)
    found = traces.length_traces(tmp_path, seed=1)
    assert found["azure conv"] == found["azure code"] == [7, 3]
    assert found["mooncake conversation"] == found["mooncake synthetic"] == [5, 4]
    assert found["arxiv"] == [9]
    drawn = found["servegen m"]
    assert len(drawn) == traces.DRAWN
    late = drawn.index(30)
    assert set(drawn[late:]) == {30}  # the later window comes later
    assert drawn.count(10) / drawn.count(20) == pytest.approx(3, rel=0.1)
    assert (len(drawn) - late) / late == pytest.approx(1, rel=0.1)


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="azure_llm_2023_conv"):
        traces.length_traces(tmp_path, seed=1)


def test_report_takes_the_worst_trace_and_counts_empty_rows(lab: Lab) -> None:
    lengths = {"even": [64] * 640, "mixed": [64, 8192] * 320}
    outcomes = {
        name: {rule: buckets.outcome(trace, rule, buckets.WINDOW) for rule in buckets.SYSTEMS}
        for name, trace in lengths.items()
    }
    report = buckets.report(lab, lengths, outcomes, {256: {"even": 0.0, "mixed": 0.0}})
    values = {figure.name: figure.value for figure in report.figures}
    assert values == dict.fromkeys(values, 0.0)
    lone = {"lone": [64] * 16 + [8192]}
    outcomes = {"lone": {rule: buckets.outcome(lone["lone"], rule, 4) for rule in buckets.SYSTEMS}}
    report = buckets.report(lab, lone, outcomes, {})
    values = {figure.name: figure.value for figure in report.figures}
    assert values["buckets.waste_unpacked"] == pytest.approx(outcomes["lone"]["adaptive"].padding.waste_full)
    assert values["buckets.waste_unpacked"] is not None
    assert values["buckets.waste_unpacked"] > 0.9  # the long one takes sixteen rows for itself
    assert values["buckets.waste"] == pytest.approx(outcomes["lone"][buckets.PACKED].padding.waste_full)
    assert values["buckets.waste"] is not None
    assert 0 < values["buckets.waste"] < values["buckets.waste_unpacked"]
    assert values["buckets.waste_any_rows"] == 0.0
    assert len(report.rows) == len(buckets.SYSTEMS)
