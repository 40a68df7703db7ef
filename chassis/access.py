"""Who may call what: the roles of each method, by the certificates of its callers. docs/security.md shows the table.

Only where there are certificates: without TLS whoever reaches a port may call all of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import grpc

from headrace.chassis.identity import roles_of_call
from headrace.core.errors import PermissionDenied, Unauthenticated
from headrace.core.role import Role

ALL = frozenset(Role)
CALLERS = frozenset({Role.CLIENT, Role.ADMIN})
LOOKERS = frozenset({Role.PROBER, Role.ADMIN})
SERVICES = frozenset({Role.GATEWAY, Role.SCHEDULER, Role.EXECUTOR, Role.PREPROCESS})

EVERY = "*"
"""All methods of a service that have no line of their own."""

TABLE: Mapping[str, Mapping[str, frozenset[Role]]] = {
    "headrace.gateway.v1.GatewayService": {
        EVERY: CALLERS,
        "ListModels": CALLERS | LOOKERS,
    },
    "inference.GRPCInferenceService": {
        EVERY: CALLERS,
        **dict.fromkeys(("ServerLive", "ServerReady", "ModelReady", "ServerMetadata"), CALLERS | LOOKERS),
        **dict.fromkeys(
            ("RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"), frozenset({Role.ADMIN})
        ),
    },
    "headrace.scheduler.v1.SchedulerService": {
        "Submit": frozenset({Role.GATEWAY}),
        "Enlist": frozenset({Role.EXECUTOR}),
    },
    "headrace.scheduler.v1.SchedulerAdminService": {
        EVERY: frozenset({Role.ADMIN}),
        "GetStatus": LOOKERS | {Role.GATEWAY},  # KServe's ModelReady asks what is loaded
    },
    "headrace.executor.v1.ExecutorService": {
        "Execute": frozenset({Role.GATEWAY}),
        "GetStatus": LOOKERS,
    },
    "headrace.preprocess.v1.PreprocessService": {EVERY: frozenset({Role.GATEWAY})},
    "opentelemetry.proto.collector.trace.v1.TraceService": {"Export": SERVICES},
    "grpc.health.v1.Health": {EVERY: ALL},
    "grpc.reflection.v1alpha.ServerReflection": {EVERY: ALL},
}
METRICS = LOOKERS
"""Of GET /metrics."""
HTTP = CALLERS
"""Of the gateway's HTTP door."""

Check = Callable[["grpc.aio.ServicerContext[Any, Any]"], None]


def allowed(method: str) -> frozenset[Role]:
    """The roles of a full method name, /SERVICE/METHOD; nobody's where it is in no table."""
    _, service, name = method.split("/")
    methods = TABLE.get(service, {})
    return methods.get(name, methods.get(EVERY, frozenset()))


def admit(roles: frozenset[Role] | None, wanted: frozenset[Role], what: str) -> None:
    """Raises Unauthenticated where a caller is nobody that is known, PermissionDenied where another role is needed."""
    if roles and roles & wanted:
        return
    limit = ", ".join(sorted(wanted)) or "nobody"
    if not roles:
        raise Unauthenticated(
            f"{what} needs a certificate of one of these roles: {limit}", field="certificate", limit=limit
        )
    named = ", ".join(sorted(roles))
    raise PermissionDenied(f"a certificate of {named} may not call {what}", field="certificate", limit=limit)


class Access:
    """The checks of one server. `ask_callers` False: who calls needs no certificate and is a client."""

    def __init__(self, domain: str, ask_callers: bool) -> None:
        self._domain = domain
        self._ask_callers = ask_callers

    def check(self, method: str) -> Check | None:
        """What a call of it must pass; it raises what `admit` raises. None where anybody may call."""
        wanted = allowed(method)
        if wanted == ALL:
            return None

        def check(context: "grpc.aio.ServicerContext[Any, Any]") -> None:
            roles = roles_of_call(context, self._domain) if self._ask_callers else frozenset({Role.CLIENT})
            admit(roles, wanted, method.removeprefix("/"))

        return check
