"""structured: answers to a schema that parse and validate, and what they cost those who ask for text.

First answers to several schemas, as many at once as there are slots, judged by the jsonschema library. Then saturated
windows in turns: all streams free, and a quarter of them constrained, whose answers cannot end before their tokens are
up. The cost is the throughput that is lost.
"""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from headrace.benchmarks.closed_loop import Stream, Window, closed_loop
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, OUTPUT_TOKENS, PROMPT_TOKENS, Lab
from headrace.benchmarks.measure import median, window_json
from headrace.benchmarks.schemas import MAX_TOKENS, SCHEMAS, Asked, questions
from headrace.benchmarks.suite import Suite, started
from headrace.client import FinishReason, Message
from headrace.core.errors import ConfigError

NUM_ANSWERS = 1000
QUARTER = NUM_STREAMS // 4
FREE, BOUND = "free", "a quarter bound"
ENDLESS = {"type": "array", "items": SCHEMAS["person"], "minItems": OUTPUT_TOKENS}
"""No answer to it ends within the window's tokens."""

Judge = Callable[[str, Any], str]
"""Of a schema's name and a parsed answer: what is wrong, '' for nothing."""


async def run(lab: Lab) -> Report:
    """Raises ConfigError without the library that judges, Unavailable where the suite does not start."""
    judge, prompts = _judge(), lab.prompts()
    windows: dict[str, list[Window]] = {FREE: [], BOUND: []}
    async with started(lab.model, lab.log("suite")) as suite:
        lab.say(f"{NUM_ANSWERS} answers to {len(SCHEMAS)} schemas")
        asked = list(itertools.islice(questions(lab.seed), NUM_ANSWERS))
        faults = await _faults(suite, asked, judge)
        for number in range(lab.rounds):
            order = (FREE, BOUND) if number % 2 == 0 else (BOUND, FREE)
            for name in order:
                lab.say(f"round {number + 1} of {lab.rounds}: {name}")
                window = await closed_loop(
                    suite.stream if name == FREE else quarter_bound(suite),
                    prompts.endless(PROMPT_TOKENS),
                    num_streams=NUM_STREAMS,
                    max_tokens=OUTPUT_TOKENS,
                    warm_s=lab.warm_s,
                    window_s=lab.window_s,
                )
                windows[name].append(window)
    return report(lab, faults, windows)


def quarter_bound(suite: Suite) -> Stream:
    """A quarter of the streams that run are constrained, the first ones to begin and then whoever takes their place."""
    num_bound = 0

    async def stream(prompt: Sequence[int], max_tokens: int) -> AsyncIterator[int]:
        nonlocal num_bound
        if num_bound >= QUARTER:
            async for num_tokens in suite.stream(prompt, max_tokens):
                yield num_tokens
            return
        num_bound += 1
        try:
            async for piece in suite.client.stream(suite.model, prompt, max_tokens=max_tokens, json_schema=ENDLESS):
                yield len(piece.token_ids)
        finally:
            num_bound -= 1

    return stream


async def _faults(suite: Suite, asked: Sequence[Asked], judge: Judge) -> list[str]:
    """What is wrong with each answer, '' for nothing; every other one is drawn with a seed."""
    places = asyncio.Semaphore(NUM_STREAMS)

    async def fault(number: int, each: Asked) -> str:
        async with places:
            prompt, schema = [Message("user", each.prompt)], SCHEMAS[each.schema]
            drawn = number % 2
            answer = await suite.client.generate(
                suite.model,
                prompt,
                json_schema=schema,
                max_tokens=MAX_TOKENS,
                temperature=float(drawn),
                seed=number,
            )
        if answer.finish_reason is not FinishReason.STOP:
            return f"{each.schema}: ended by {answer.finish_reason.name.lower()}"
        try:
            return judge(each.schema, json.loads(answer.text))
        except ValueError as error:
            return f"{each.schema}: {error}"

    return list(await asyncio.gather(*(fault(number, each) for number, each in enumerate(asked))))


def _judge() -> Judge:
    try:
        import jsonschema
    except ImportError as error:
        raise ConfigError(f"{error}: pip install jsonschema, which judges the answers") from error
    validators = {
        name: jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        for name, schema in SCHEMAS.items()
    }

    def judge(name: str, answer: Any) -> str:
        error = next(validators[name].iter_errors(answer), None)
        return f"{name}: {error.message}" if error else ""

    return judge


def report(lab: Lab, faults: Sequence[str], windows: dict[str, list[Window]]) -> Report:
    """The share of valid answers, and the median over the rounds of what a quarter of constrained streams loses."""
    rates = {name: [window.tokens_per_s for window in taken] for name, taken in windows.items()}
    cost = median([1 - bound / free for free, bound in zip(rates[FREE], rates[BOUND], strict=True) if free])
    wrong = Counter(fault for fault in faults if fault)
    valid = 1 - wrong.total() / len(faults) if faults else None
    rows = [
        Row("answers", {"valid": f"{len(faults) - wrong.total():,} of {len(faults):,}"}, "; ".join(list(wrong)[:3])),
        *(
            Row(
                name,
                {
                    "tokens/s": "–" if (rate := median(taken)) is None else f"{rate:,.0f}",
                    "rounds": " ".join(f"{each:,.0f}" for each in taken),
                },
            )
            for name, taken in rates.items()
        ),
    ]
    return Report(
        "structured",
        [Figure("structured.valid", valid), Figure("structured.cost", cost)],
        rows,
        settings=lab.settings() | {"streams": NUM_STREAMS, "bound": QUARTER, "answers": len(faults)},
        raw={"faults": wrong, "windows": {name: list(map(window_json, taken)) for name, taken in windows.items()}},
    )
