"""The services of a suite: which there are, which a layout needs, who must know whose address. Values only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.chassis.config import AUTO_ENCODER, Settings
from headrace.chassis.server import ServerHandle
from headrace.core.errors import HeadraceError


class Service(StrEnum):
    """In starting order: each needs the addresses of those above it only. Draining goes the other way."""

    SCHEDULER = "scheduler"
    EXECUTOR = "executor"
    ENCODER = "encoder"
    PREPROCESS = "preprocess"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Suite:
    """A running suite: the HOST:PORT of each of its services, and the services themselves where they are in here."""

    addresses: Mapping[Service, str]
    handles: Mapping[Service, ServerHandle] = field(default_factory=dict)

    @property
    def gateway(self) -> str:
        return self.addresses[Service.GATEWAY]


OnServing = Callable[[Service, str], None]
"""Told of each service and its address once it is SERVING."""


def layout(settings: Settings) -> list[Service]:
    """The services to start, in order: preprocess only where the gateway is told to use the one configured here, an
    encoder's executor only where one is named."""
    wanted = {
        Service.PREPROCESS: settings.gateway.preprocess == settings.preprocess.listen,
        Service.ENCODER: settings.encoder.model not in ("", AUTO_ENCODER),
    }
    return [service for service in Service if wanted.get(service, True)]


def metered(settings: Settings, service: Service) -> Settings:
    """The settings for one service of a suite: its metrics are at `metrics_listen`'s port plus its place among all."""
    listen = settings.telemetry.metrics_listen
    host, _, port = listen.rpartition(":")
    if not listen or port == "0":
        return settings
    own = f"{host}:{int(port) + list(Service).index(service)}"
    return settings.model_copy(update={"telemetry": settings.telemetry.model_copy(update={"metrics_listen": own})})


CALLED_BY_OTHERS = frozenset({Service.SCHEDULER, Service.PREPROCESS})
"""Whose address `wired` tells."""


def wired(settings: Settings, service: Service, address: str) -> Settings:
    """The settings with `address` (the bound one, port 0 resolved) told to everybody who calls `service`."""
    match service:
        case Service.SCHEDULER:
            changes = {name: {"scheduler": address} for name in ("gateway", "executor", "encoder")}
        case Service.PREPROCESS:
            changes = {"gateway": {"preprocess": address}}
        case _:
            changes = {}
    sections = {name: getattr(settings, name).model_copy(update=change) for name, change in changes.items()}
    return settings.model_copy(update=sections)


def listening(settings: Settings, service: Service, address: str) -> Settings:
    """The settings with `address` for the service itself."""
    section = getattr(settings, service).model_copy(update={"listen": address})
    return settings.model_copy(update={service.value: section})


def cause(error: BaseException) -> HeadraceError | None:
    """The error for the user in an exception or in a group of them; None where it is a fault of ours."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := cause(inner))), None)
    return error if isinstance(error, HeadraceError) else None
