"""All services in one process, on loopback: `headrace up --single`, and the fixture of end-to-end tests."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from headrace.chassis.config import Settings
from headrace.chassis.server import ServerHandle
from headrace.core.role import Role
from headrace.standalone.readiness import START_S, await_serving
from headrace.standalone.services import ROLES, OnServing, Suite, parts, wired
from headrace.standalone.wiring import start


@asynccontextmanager
async def running(settings: Settings, on_serving: OnServing = lambda name, address: None) -> AsyncIterator[Suite]:
    """A suite that is ready; drained from the gateway down when the block ends.

    Listen addresses may have port 0: the suite names the bound ones. Raises what `wiring.start` raises, Unavailable
    where a service is not ready in time.
    """
    addresses: dict[str, str] = {}
    handles: dict[str, ServerHandle] = {}
    async with AsyncExitStack() as services:
        started = parts(settings)
        for part in started:
            handle = await services.enter_async_context(start(part.service, part.settings(settings)))
            handles[part.name], addresses[part.name] = handle, handle.address
            settings = wired(settings, part.service, handle.address)
        prober = settings.transport.of(Role.PROBER)
        for part in started:
            address = addresses[part.name]
            await await_serving(address, prober, START_S, ROLES[part.service])
            on_serving(part.name, address)
        yield Suite(addresses, handles)
