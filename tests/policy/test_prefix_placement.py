"""Placement weighs a cache against load, in seconds, and works without either."""

import pytest

from headrace.core.request import Precision
from headrace.scheduler.policy.commands import Dispatch
from headrace.scheduler.policy.events import (
    ExecutorEnlisted,
    ExecutorLost,
    ExecutorReported,
    LoadedModel,
    Request,
    StepSample,
    Submitted,
)
from headrace.scheduler.policy.limits import Bounds, Limits
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.state import State

PREFIXES = tuple(range(100, 116))


class Cluster:
    """Two executors whose steps take 8 ms, 0.5 ms a decode and 0.3 ms a prompt token."""

    def __init__(self) -> None:
        self.state = State(Limits(Bounds(1000, 10**6), lease_s=60.0, batch_tokens=10_000))
        self.count = 0
        for name in "ab":
            self.enlist(name)
        samples = tuple(
            StepSample(decodes, prefill, 0.008 + 0.0005 * decodes + 0.0003 * prefill)
            for decodes in (1, 5, 20, 40)
            for prefill in (0, 64, 300)
        )
        for _ in range(20):
            self.report("a", steps=samples)

    def enlist(self, name: str) -> None:
        models = (LoadedModel("m", Precision.INT8, 8192),)
        step(self.state, ExecutorEnlisted(name, f"{name}:1", models, 64, 10_000, 32), 0.0)

    def report(self, name: str, **what: object) -> None:
        step(self.state, ExecutorReported(name, **what), 0.0)  # type: ignore[arg-type]

    def submit(self, prefixes: tuple[int, ...] = (), prompt_tokens: int = 520, output_tokens: int = 10) -> str:
        """Where it goes."""
        self.count += 1
        request = Request(self.count, f"r{self.count}", "g", "m", prompt_tokens, output_tokens, prefixes=prefixes)
        commands = step(self.state, Submitted(request), 0.0)
        (dispatch,) = (command for command in commands if isinstance(command, Dispatch))
        self.report(dispatch.executor_id, started_ids=(request.request_id,))
        return dispatch.executor_id


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_without_prefixes_load_decides(cluster: Cluster) -> None:
    assert [cluster.submit() for _ in range(4)] == ["a", "b", "a", "b"]


def test_a_cache_is_worth_some_load(cluster: Cluster) -> None:
    cluster.report("b", added_prefixes=PREFIXES)
    assert [cluster.submit(PREFIXES) for _ in range(3)] == ["b", "b", "b"]
    assert cluster.submit() == "a"


def test_load_outweighs_a_cache_where_that_is_sooner(cluster: Cluster) -> None:
    """512 cached tokens are worth 0.15 s; 100 tokens beside n others take 0.05 n s longer."""
    cluster.report("b", added_prefixes=PREFIXES)
    assert [cluster.submit(PREFIXES, output_tokens=100) for _ in range(5)] == ["b", "b", "b", "b", "a"]


def test_the_longer_beginning_wins(cluster: Cluster) -> None:
    cluster.report("a", added_prefixes=PREFIXES[:2])
    cluster.report("b", added_prefixes=PREFIXES)
    assert cluster.submit(PREFIXES) == "b"
    cluster.report("b", removed_prefixes=PREFIXES)
    assert cluster.submit(PREFIXES) == "a"


def test_an_executor_that_goes_or_comes_anew_has_nothing(cluster: Cluster) -> None:
    cluster.report("b", added_prefixes=PREFIXES)
    step(cluster.state, ExecutorLost("b"), 0.0)
    assert not cluster.state.prefixes
    cluster.enlist("b")
    cluster.report("b", added_prefixes=PREFIXES)
    cluster.enlist("b")
    assert not cluster.state.prefixes
    assert cluster.submit(PREFIXES) == "a"


def test_hints_that_are_wrong_do_no_harm(cluster: Cluster) -> None:
    cluster.report("nobody", added_prefixes=PREFIXES)
    cluster.report("b", removed_prefixes=PREFIXES, added_prefixes=(*PREFIXES, *PREFIXES))
    cluster.submit(PREFIXES * 3, prompt_tokens=1)  # more borders than the prompt has tokens


def test_a_full_executor_is_passed_over(cluster: Cluster) -> None:
    cluster.report("b", added_prefixes=PREFIXES)
    placed = [cluster.submit(PREFIXES, output_tokens=1) for _ in range(128)]
    assert placed.count("a") == placed.count("b") == 64
