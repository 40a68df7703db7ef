"""Leaving: what runs is finished first; a second Ctrl-C does not wait for it."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1.types_pb2 import FINISH_REASON_LENGTH, Sampling
from headrace.models import reference

LONG = 4000


def generating(channel: grpc.Channel) -> Iterator[pb.GenerateResponse]:
    """An answer of LONG tokens of which the first have come."""
    request = pb.GenerateRequest(model=reference.NAME, text="Hi", sampling=Sampling(max_tokens=LONG))
    pieces: Iterator[pb.GenerateResponse] = GatewayServiceStub(channel).Generate(request, timeout=120)
    next(pieces)
    return pieces


@pytest.mark.parametrize("options", [(), ("--single",)], ids=["processes", "single"])
def test_an_answer_that_runs_is_finished_before_leaving(start_up: Callable[..., Any], options: tuple[str, ...]) -> None:
    running = start_up(*options)
    with grpc.insecure_channel(running.ready()["gateway"]) as channel:
        pieces = generating(channel)
        running.interrupt()
        *_, last = pieces
    assert last.finish_reason == FINISH_REASON_LENGTH
    assert last.usage.completion_tokens == LONG
    code, lines = running.ended()
    assert code == 0, lines
    assert running.services() == {}


def test_a_second_interrupt_waits_for_nothing(start_up: Callable[..., Any]) -> None:
    running = start_up(HEADRACE_EXECUTOR__REFERENCE_STEP_MS="1000", HEADRACE_TRANSPORT__DRAIN_S="3600")
    with grpc.insecure_channel(running.ready()["gateway"]) as channel:
        pieces = generating(channel)
        running.interrupt()
        while "draining" not in running.log.read_text():
            next(pieces)
        running.interrupt()
        with pytest.raises(grpc.RpcError):
            list(pieces)
    code, lines = running.ended()
    assert code == 130, lines
    assert running.services() == {}
