"""All services in one process, on loopback: `headrace up --single`, and the fixture of end-to-end tests."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from headrace.chassis.config import Settings
from headrace.chassis.server import ServerHandle
from headrace.standalone.readiness import START_S, await_serving
from headrace.standalone.services import OnServing, Service, Suite, layout, metered, wired
from headrace.standalone.wiring import start


@asynccontextmanager
async def running(settings: Settings, on_serving: OnServing = lambda service, address: None) -> AsyncIterator[Suite]:
    """A suite that is ready; drained from the gateway down when the block ends.

    Listen addresses may have port 0: the suite names the bound ones. Raises what `wiring.start` raises, Unavailable
    where a service is not ready in time.
    """
    addresses: dict[Service, str] = {}
    handles: dict[Service, ServerHandle] = {}
    async with AsyncExitStack() as services:
        for service in layout(settings):
            handle = await services.enter_async_context(start(service, metered(settings, service)))
            handles[service], addresses[service] = handle, handle.address
            settings = wired(settings, service, handle.address)
        for service, address in addresses.items():
            await await_serving(address, settings.transport, START_S)
            on_serving(service, address)
        yield Suite(addresses, handles)
