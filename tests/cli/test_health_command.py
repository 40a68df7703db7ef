"""`headrace health` against a real server: ready, not ready, unknown, away."""

import pytest

from headrace.chassis.config import TransportSettings
from headrace.chassis.server import serve
from headrace.cli.health import status_of
from headrace.core.errors import NotFound, Unavailable

BOUND_S = 30.0


async def test_health_is_what_the_server_says() -> None:
    async with serve("127.0.0.1:0", TransportSettings(drain_s=0.2), lambda server: None, ["own"]) as handle:
        with pytest.raises(Unavailable, match="is NOT_SERVING"):
            await status_of(handle.address, "", BOUND_S)
        await handle.set_ready(True)
        assert await status_of(handle.address, "", BOUND_S) == "SERVING"
        assert await status_of(handle.address, "own", BOUND_S) == "SERVING"
        with pytest.raises(NotFound, match="no service 'other'"):
            await status_of(handle.address, "other", BOUND_S)


async def test_nobody_there() -> None:
    with pytest.raises(Unavailable, match=r"nothing answers at 127\.0\.0\.1:1"):
        await status_of("127.0.0.1:1", "", BOUND_S)
