"""Answers to a schema parse and validate, whatever the model would rather say; judged by the jsonschema library."""

import asyncio
import itertools
import json
from collections import Counter

import jsonschema

from headrace.benchmarks.schemas import MAX_TOKENS, SCHEMAS, questions
from headrace.client import AsyncClient, FinishReason, Message

NUM_ANSWERS = 100
DRAWN = {"temperature": 1.1, "top_p": 0.95}


async def test_a_hundred_answers_parse_and_validate(served):
    asked = list(itertools.islice(questions(seed=3), NUM_ANSWERS))
    async with AsyncClient(served.grpc) as client:
        answers = await asyncio.gather(
            *(
                client.generate(
                    "smollm2",
                    [Message("user", each.prompt)],
                    json_schema=SCHEMAS[each.schema],
                    max_tokens=MAX_TOKENS,
                    **(DRAWN | {"seed": number} if number % 2 else {}),
                )
                for number, each in enumerate(asked)
            )
        )
    kinds = Counter()
    for each, answer in zip(asked, answers, strict=True):
        assert answer.finish_reason is FinishReason.STOP, answer.text
        jsonschema.validate(json.loads(answer.text), SCHEMAS[each.schema], format_checker=jsonschema.FormatChecker())
        kinds[each.schema] += 1
    assert kinds == dict.fromkeys(SCHEMAS, NUM_ANSWERS // len(SCHEMAS))
    assert len({answer.text for answer in answers}) > NUM_ANSWERS // 4
