"""Every layout of the suite: all services healthy and reflected, and the answer that was worked out on paper."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.types.v1.types_pb2 import Sampling
from headrace.executor.engines.reference import expected_answer
from headrace.models import reference

SERVICES = {
    "gateway": "headrace.gateway.v1.GatewayService",
    "scheduler": "headrace.scheduler.v1.SchedulerService",
    "executor": "headrace.executor.v1.ExecutorService",
    "preprocess": "headrace.preprocess.v1.PreprocessService",
}
LAYOUTS = {
    "processes": (),
    "processes-remote": ("--preprocess", "remote"),
    "single": ("--single",),
    "single-remote": ("--single", "--preprocess", "remote"),
}


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_is_healthy_reflected_and_right(start_up: Callable[..., Any], options: tuple[str, ...]) -> None:
    running = start_up(*options)
    addresses = running.ready()
    assert addresses.keys() == SERVICES.keys() - (set() if "remote" in options else {"preprocess"})
    assert set(running.services()) == (set() if "--single" in options else set(addresses))
    for service, address in addresses.items():
        with grpc.insecure_channel(address) as channel:
            for name in ("", SERVICES[service]):
                health = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=name), timeout=10
                )
                assert health.status == health_pb2.HealthCheckResponse.SERVING
            assert SERVICES[service] in _reflected(channel)
    assert _generate(addresses["gateway"], "Hi", 12) == bytes(expected_answer(b"Hi", 12)).decode()
    running.interrupt()
    code, lines = running.ended()
    assert code == 0, lines
    assert running.services() == {}


def _reflected(channel: grpc.Channel) -> list[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=10)
    return [service.name for service in next(answers).list_services_response.service]


def _generate(gateway: str, prompt: str, num_tokens: int) -> str:
    request = pb.GenerateRequest(model=reference.NAME, text=prompt, sampling=Sampling(max_tokens=num_tokens))
    with grpc.insecure_channel(gateway) as channel:
        return "".join(piece.text for piece in GatewayServiceStub(channel).Generate(request, timeout=60))
