"""The services of a suite: which there are, which a layout needs, who must know whose address. Values only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.chassis.config import AUTO_ENCODER, Settings
from headrace.chassis.server import ServerHandle
from headrace.core.errors import HeadraceError
from headrace.core.role import Role


class Service(StrEnum):
    """In starting order: each needs the addresses of those above it only. Draining goes the other way."""

    SCHEDULER = "scheduler"
    EXECUTOR = "executor"
    ENCODER = "encoder"
    PREPROCESS = "preprocess"
    GATEWAY = "gateway"


ROLES: Mapping[Service, Role] = {
    Service.SCHEDULER: Role.SCHEDULER,
    Service.EXECUTOR: Role.EXECUTOR,
    Service.ENCODER: Role.EXECUTOR,
    Service.PREPROCESS: Role.PREPROCESS,
    Service.GATEWAY: Role.GATEWAY,
}
"""Whose certificate a service shows."""


@dataclass(frozen=True, slots=True)
class Part:
    """A server of a suite: a service, and of several executors the `number`-th, with its precision in its name."""

    service: Service
    name: str
    number: int = 0
    precision: str = ""

    def settings(self, settings: Settings) -> Settings:
        """The suite's settings as this part has them. Further executors listen where the system lets them, and tell
        the scheduler where that is."""
        settings = metered(settings, self.service, self.number)
        if not self.precision:
            return settings
        changes: dict[str, object] = {"precision": (self.precision,)}
        if self.number:
            host, _, _ = settings.executor.listen.rpartition(":")
            changes |= {"listen": f"{host}:0", "advertise": ""}
        return settings.model_copy(update={"executor": settings.executor.model_copy(update=changes)})


@dataclass(frozen=True, slots=True)
class Suite:
    """A running suite: the HOST:PORT of each of its parts by name, which is the service's unless there are several of
    it, and the services themselves where they are in here."""

    addresses: Mapping[str, str]
    handles: Mapping[str, ServerHandle] = field(default_factory=dict)

    @property
    def gateway(self) -> str:
        return self.addresses[Service.GATEWAY]


OnServing = Callable[[str, str], None]
"""Told of each part's name and address once it is SERVING."""


def layout(settings: Settings) -> list[Service]:
    """The services to start, in order: preprocess only where the gateway is told to use the one configured here, an
    encoder's executor only where one is named."""
    wanted = {
        Service.PREPROCESS: settings.gateway.preprocess == settings.preprocess.listen,
        Service.ENCODER: settings.encoder.model not in ("", AUTO_ENCODER),
    }
    return [service for service in Service if wanted.get(service, True)]


def parts(settings: Settings) -> list[Part]:
    """What to start, in order: each service of the layout once, an executor for each precision."""
    found: list[Part] = []
    for service in layout(settings):
        precisions = tuple(dict.fromkeys(settings.executor.precision)) if service is Service.EXECUTOR else ()
        if len(precisions) > 1:
            found += [Part(service, f"{service}-{each}", number, each) for number, each in enumerate(precisions)]
        else:
            found.append(Part(service, service.value))
    return found


def metered(settings: Settings, service: Service, number: int = 0) -> Settings:
    """The settings for one service of a suite: its metrics are at `metrics_listen`'s port plus its place among all;
    those of further ones of a kind come after all kinds."""
    listen = settings.telemetry.metrics_listen
    host, _, port = listen.rpartition(":")
    if not listen or port == "0":
        return settings
    place = len(Service) + number - 1 if number else list(Service).index(service)
    own = f"{host}:{int(port) + place}"
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
