"""Constrained answers are what their constraint allows, and what they would be alone, on every engine."""

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLTokenizer

from headrace.chassis.config import default_home
from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.request import FinishReason, Sampling
from headrace.executor.engines.protocol import Engine
from headrace.executor.guide import Guide, Guides
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker
from headrace.models.grammar import tokens_of
from headrace.models.reference import byte_tokenizer
from headrace.models.repository import Repository

pytestmark = pytest.mark.parametrize("load", ["openvino", "reference"], indirect=True, scope="session")

PATIENCE_S = 120
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
        "age": {"type": "integer", "maximum": 9},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
BY_SCHEMA = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))
BY_REGEX = Constraint(ConstraintKind.REGEX, "(red|green|blue)( [0-9]{2,4}){3,6}[.]")
BY_CHOICE = Constraint(ConstraintKind.CHOICE, texts=("yes", "yes, of course", 'never "é"'))
BY_GRAMMAR = Constraint(
    ConstraintKind.GRAMMAR, 'start: term ("+" term){2,5}\nterm: /[1-9][0-9]?/ | "(" term "*" term ")"'
)
EVERY = (BY_SCHEMA, BY_REGEX, BY_CHOICE, BY_GRAMMAR)
Answers = dict[tuple[str, int], list[Any]]


@pytest.fixture(scope="module")
def tokens(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    if engine.spec.name == "reference":
        path, ends = tmp_path_factory.mktemp("bytes") / "tokenizer.json", (256,)
        path.write_text(byte_tokenizer().to_str(), encoding="utf-8")
    else:
        entry = Repository(default_home()).get("smollm2")
        path, ends = Path(entry.tokenizer), entry.info.eos_token_ids
    return tokens_of(path, engine.spec.vocab_size, ends)


class Run:
    """One worker's life: jobs from the start; `then` is called with the worker after each delivery."""

    def __init__(self, engine: Engine, tokens: LLTokenizer, slow: tuple[float, ...] = ()) -> None:
        self.answers: Answers = defaultdict(list)
        self.finishes: dict[tuple[str, int], FinishReason] = {}
        self.errors: dict[str, HeadraceError] = {}
        self.late = 0
        self._tokens = tokens
        self._guides = SlowGuides(lambda: tokens, engine.spec.vocab_size, slow)
        self._left: set[str] = set()
        self._done = threading.Event()
        self._then: Callable[[Worker], None] = lambda worker: None
        self.worker = Worker(
            engine,
            (tokens.eos_token,),
            num_slots=32,
            step_tokens=64,
            deliver=self._deliver,
            failed=self._failed,
            guides=self._guides,
            speculation=4,
        )

    def go(self, jobs: list[Job], then: Callable[[Worker], None] = lambda worker: None) -> "Run":
        self._then, self._left = then, {job.request_id for job in jobs}
        with self._guides, self.worker:
            for job in jobs:
                self.worker.submit(job)
            assert self._done.wait(PATIENCE_S), f"left: {self._left}, {self.worker.status()}"
        assert self.worker.pool.num_in_use == self.worker.pool.num_reserved == 0
        return self

    def text(self, request_id: str, index: int = 0) -> str:
        ids = [choice.token_id for choice in self.answers[request_id, index]]
        return self._tokens.decode_str([each for each in ids if each != self._tokens.eos_token])

    def _deliver(self, result: StepResult) -> None:
        for delta in result.deltas:
            key = delta.job.request_id, delta.index
            if delta.error is not None:
                self.errors[delta.job.request_id] = delta.error
            if delta.choice is not None:
                self.answers[key].append(delta.choice)
            if delta.finish is not FinishReason.NONE:
                self.finishes[key] = delta.finish
                if delta.sequence is not None and delta.sequence.guide is not None:
                    self.late += delta.sequence.guide.late
        self._left -= set(result.finished)
        self._then(self.worker)
        if not self._left:
            self._done.set()

    def _failed(self, error: Exception) -> None:
        raise error


class SlowGuides(Guides):
    """Each piece of work takes the next of `slow` seconds longer, over and over."""

    def __init__(self, load: Callable[[], LLTokenizer], vocab_size: int, slow: tuple[float, ...]) -> None:
        super().__init__(load, vocab_size)
        self._delays = _over_and_over(slow)

    def submit(self, work: Callable[[], None]) -> Any:
        delay_s = next(self._delays, 0.0)

        def later() -> None:
            time.sleep(delay_s)
            work()

        return super().submit(later if delay_s else work)


def _over_and_over(delays: tuple[float, ...]) -> Iterator[float]:
    while delays:
        yield from delays


def job(request_id: str, constraint: Constraint | None, prompt: str = "Tell me: ", **settings: Any) -> Job:
    settings = {"max_tokens": 60} | settings
    ids = np.frombuffer(f"{prompt}{request_id} ".encode(), np.uint8).astype(np.uint32)
    return Job(1, request_id, ids, Sampling(constraint=constraint, **settings), priority=3)


def jobs() -> list[Job]:
    """Each kind of constraint with each kind of choice, and free answers among them."""
    made = []
    for number, constraint in enumerate(EVERY):
        made += [
            job(f"greedy-{number}", constraint),
            job(f"drawn-{number}", constraint, temperature=1.2, seed=number, n=2, logprobs=2),
            job(f"narrow-{number}", constraint, temperature=0.8, top_k=7, top_p=0.9, seed=3, repetition_penalty=1.2),
            job(f"free-{number}", None, max_tokens=12 + number, ignore_eos=True),
        ]
    return made


def satisfies(constraint: Constraint, text: str) -> bool:
    match constraint.kind:
        case ConstraintKind.REGEX:
            return re.fullmatch(constraint.text, text) is not None
        case ConstraintKind.CHOICE:
            return text in constraint.texts
        case ConstraintKind.GRAMMAR:
            return re.fullmatch(r"[0-9+*()]+", text) is not None and isinstance(eval(text), int)
        case _:
            found = json.loads(text)
            return (
                set(found) == {"name", "age"} and re.fullmatch("[A-Z][a-z]{2,8}", found["name"]) and found["age"] < 10
            )


@pytest.fixture(scope="module")
def together(engine: Engine, tokens: LLTokenizer) -> Run:
    return Run(engine, tokens).go(jobs())


def test_answers_are_what_their_constraints_allow(together: Run) -> None:
    assert not together.errors
    for each in jobs():
        for index in range(each.sampling.n):
            text, finish = together.text(each.request_id, index), together.finishes[each.request_id, index]
            if each.sampling.constraint is None:
                assert finish is FinishReason.LENGTH
            elif finish is FinishReason.LENGTH:
                assert len(together.answers[each.request_id, index]) == each.sampling.max_tokens
            else:
                assert finish is FinishReason.STOP
                assert satisfies(each.sampling.constraint, text), text
    stopped = [key for key, finish in together.finishes.items() if finish is FinishReason.STOP]
    assert len(stopped) >= 12


def test_company_changes_nothing(engine: Engine, tokens: LLTokenizer, together: Run) -> None:
    """Constrained answers are not changed by free ones, nor the other way round."""
    for part in ("free", "drawn"):
        alone = Run(engine, tokens).go([each for each in jobs() if each.request_id.startswith(part)])
        if engine.spec.exact:
            assert alone.answers == {key: said for key, said in together.answers.items() if key[0].startswith(part)}


def test_a_mask_that_comes_late_changes_nothing(engine: Engine, tokens: LLTokenizer, together: Run) -> None:
    slow = Run(engine, tokens, slow=(0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.1)).go(jobs()[:8])
    assert slow.late
    assert not slow.errors
    if engine.spec.exact:
        assert slow.answers == {key: together.answers[key] for key in slow.answers}
    assert len(slow.answers) == 10


@pytest.mark.parametrize("drop_kv", [False, True])
def test_displaced_answers_go_on_as_they_were(
    engine: Engine, tokens: LLTokenizer, together: Run, drop_kv: bool
) -> None:
    victims = [each for each in jobs() if each.request_id.startswith(("drawn", "greedy"))]
    displaced = tuple((each.request_id, drop_kv) for each in victims)
    vip = replace(job("vip", BY_CHOICE), priority=1, displaced=displaced)
    deliveries = 0

    def displace(worker: Worker) -> None:
        nonlocal deliveries
        deliveries += 1
        if deliveries == 5:
            worker.submit(vip)
        worker.resume(worker.paused_ids)

    run = Run(engine, tokens)
    run.go(victims, displace)
    assert not run.errors
    if engine.spec.exact:
        assert {key: run.answers[key] for key in run.answers if key[0] != "vip"} == {
            key: said for key, said in together.answers.items() if key[0].startswith(("drawn", "greedy"))
        }


def test_an_answer_goes_on_from_any_of_its_tokens(engine: Engine, tokens: LLTokenizer, together: Run) -> None:
    for name in ("drawn-0", "greedy-1"):
        whole = next(each for each in jobs() if each.request_id == name)
        ids = [[choice.token_id for choice in together.answers[name, index]] for index in range(whole.sampling.n)]
        parts = []
        for cut in range(0, max(map(len, ids)), 4):
            known = tuple(np.array(each[: min(cut, len(each) - 1)], np.uint32) for each in ids)
            parts.append(replace(whole, request_id=f"{name}-{cut}", answers=known))
        run = Run(engine, tokens).go(parts)
        for part in parts:
            for index, known in enumerate(part.answers):
                said = [choice.token_id for choice in run.answers[part.request_id, index]]
                assert [*known.tolist(), *said] == ids[index] or not engine.spec.exact


def test_what_takes_too_much_fails_alone(engine: Engine, tokens: LLTokenizer) -> None:
    bombs = [
        job("bomb", Constraint(ConstraintKind.REGEX, "((((a{1,1000}){1,1000}){1,1000}){1,1000})"), n=2),
        job("never", Constraint(ConstraintKind.REGEX, r"[^\s\S]")),
        job("broken", Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "nothing"}'), n=3),
    ]
    run = Run(engine, tokens).go([*bombs, job("good", BY_CHOICE), job("free", None, max_tokens=5)])
    assert run.errors.keys() == {"bomb", "never", "broken"}
    assert all(isinstance(error, InvalidRequest) for error in run.errors.values())
    assert run.errors["bomb"].field == run.errors["never"].field == "sampling.regex"
    assert run.errors["broken"].field == "sampling.json_schema"
    assert satisfies(BY_CHOICE, run.text("good"))
    assert len(run.answers["free", 0]) == 5


def test_the_reference_engine_takes_the_likeliest_allowed(engine: Engine, tokens: LLTokenizer) -> None:
    """On paper: after "a" the rule names 32 + (97 mod 95) = 34; of the digits 0 to 9 (48 to 57) the nearest is 48.
    After "a0": h = 2 * 97 + 48 + 1 = 243, 243 mod 95 = 53, 32 + 53 = 85, and the nearest digit is 57."""
    if engine.spec.name != "reference":
        pytest.skip("its answers cannot be worked out on paper")
    ask = Job(1, "paper", np.array([97], np.uint32), Sampling(constraint=Constraint(ConstraintKind.REGEX, "[0-9]{2}")))
    run = Run(engine, tokens).go([ask])
    assert run.text("paper") == "09"
    assert run.finishes["paper", 0] is FinishReason.STOP


def test_guides_keep_a_bounded_number_of_matchers(tokens: LLTokenizer) -> None:
    with Guides(lambda: tokens, tokens.vocab_size) as guides:
        opened: list[Guide] = []
        for number in range(70):
            opened.append(guides.open(Constraint(ConstraintKind.REGEX, f"x{number}"), []))
        assert all(guide.allows(tokens.tokenize_str("x")[0]) for guide in opened)
        assert len(guides._kept) == 64
