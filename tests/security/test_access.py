"""Roles: which names in a certificate give one, and that each method of each service has its line in the table."""

import importlib
from pathlib import Path

import pytest

from headrace.chassis.access import ALL, EVERY, TABLE, admit, allowed
from headrace.chassis.identity import roles
from headrace.core.errors import PermissionDenied, Unauthenticated
from headrace.core.role import Role

MODULES = [f"headrace.api.{name}.v1.{name}_pb2" for name in ("gateway", "scheduler", "executor", "preprocess")]
OTHERS = [
    "headrace.api.inference.inference_pb2",
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    "grpc_health.v1.health_pb2",
    "grpc_reflection.v1alpha.reflection_pb2",
]
METHODS = sorted(
    f"/{service.full_name}/{method.name}"
    for module in [*MODULES, *OTHERS]
    for service in importlib.import_module(module).DESCRIPTOR.services_by_name.values()
    for method in service.methods
)


@pytest.mark.parametrize(
    ("dns", "uris", "given"),
    [
        (["gateway.headrace"], [], {"gateway"}),
        (["GATEWAY.Headrace"], [], {"gateway"}),
        ([], ["spiffe://headrace/gateway"], {"gateway"}),
        ([], ["spiffe://headrace/prod/eu/executor"], {"executor"}),
        (["admin.headrace", "client.headrace"], [], {"admin", "client"}),
        (["gateway"], [], set()),
        (["gateway.headrace.example"], [], set()),
        (["x.gateway.headrace"], [], set()),
        (["gatewayheadrace"], [], set()),
        (["*.headrace"], [], set()),
        (["owner.headrace"], [], set()),
        ([], ["spiffe://elsewhere/gateway"], set()),
        ([], ["spiffe://headrace"], set()),
        ([], ["spiffe://headrace:1/gateway"], set()),
        ([], ["spiffe://me@headrace/gateway"], set()),
        ([], ["spiffe://headrace/gateway?x"], set()),
        ([], ["spiffe://headrace/x#/gateway"], set()),
        ([], ["https://headrace/gateway"], set()),
        ([], ["spiffe://headrace/gateway/"], set()),
        ([], ["spiffe://[headrace/gateway"], set()),
        ([], ["spiffe://headrace/gate\nway"], set()),
        ([], ["spiffe://headrace/gateway\n"], set()),
    ],
)
def test_names_that_give_a_role(dns: list[str], uris: list[str], given: set[str]) -> None:
    assert roles(dns, uris, "headrace") == given


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_callers(method: str) -> None:
    assert allowed(method)


def test_the_table_names_what_there_is() -> None:
    named = {f"/{service}/{method}" for service, methods in TABLE.items() for method in methods if method != EVERY}
    assert named <= set(METHODS)
    assert set(TABLE) == {method.split("/")[1] for method in METHODS}


def test_only_health_and_reflection_are_open() -> None:
    assert {method.split("/")[1] for method in METHODS if allowed(method) == ALL} == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


def test_what_nobody_has_named_nobody_may_call() -> None:
    assert allowed("/headrace.gateway.v2.Service/Call") == frozenset()
    with pytest.raises(PermissionDenied, match="may not call it"):
        admit(frozenset({Role.ADMIN}), frozenset(), "it")


def test_refusals_name_who_may() -> None:
    wanted = frozenset({Role.ADMIN, Role.PROBER})
    with pytest.raises(PermissionDenied) as denied:
        admit(frozenset({Role.CLIENT}), wanted, "it")
    assert (denied.value.field, denied.value.limit) == ("certificate", "admin, prober")
    for nobody in (None, frozenset[Role]()):
        with pytest.raises(Unauthenticated):
            admit(nobody, wanted, "it")
    admit(frozenset({Role.CLIENT, Role.ADMIN}), wanted, "it")


def test_the_documented_table_is_this_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    lines = [
        f"| `{service}/{method}` | {'all' if callers == ALL else ', '.join(sorted(callers))} |"
        for service, methods in TABLE.items()
        for method, callers in methods.items()
    ]
    assert [
        line for line in page.splitlines() if line.startswith(("| `headrace.", "| `inference.", "| `open", "| `grpc"))
    ] == lines
