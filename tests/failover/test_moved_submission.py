"""What the scheduler counts of a request that comes again with tokens of its answer."""

import pytest

from headrace.api.scheduler.v1.scheduler_pb2 import Submission
from headrace.scheduler.codec import to_request
from headrace.scheduler.policy.events import Request


@pytest.mark.parametrize(
    ("n", "answer_tokens", "counted"),
    [(1, 0, (100, 64)), (1, 40, (140, 24)), (1, 99, (164, 0)), (3, 40, (100, 64))],
    ids=["new", "moved", "more than can be", "several answers share only the prompt"],
)
def test_known_tokens_are_counted_as_prompt_and_the_sum_stays(
    n: int, answer_tokens: int, counted: tuple[int, int]
) -> None:
    submission = Submission(
        request_id="r", model="m", prompt_tokens=100, max_output_tokens=64, n=n, answer_tokens=answer_tokens
    )
    request = to_request(submission, "g", 1)
    assert isinstance(request, Request)
    assert (request.prompt_tokens, request.max_output_tokens) == counted
