"""The gateway's end as requests see it: first nothing new is taken, later what still runs is ended."""

import asyncio
from typing import NoReturn

from headrace.core.errors import Draining


class Leaving:
    """One event loop owns it."""

    def __init__(self) -> None:
        self._begun = False
        self._over = asyncio.Event()

    def begin(self, drain_s: float) -> None:
        """What runs has so long from the first call on."""
        if not self._begun:
            self._begun = True
            asyncio.get_running_loop().call_later(drain_s, self._over.set)

    def check(self) -> None:
        """Raises Draining once it has begun: on connections that were open, requests come until they are closed."""
        if self._begun:
            raise Draining("the gateway is leaving")

    async def over(self) -> NoReturn:
        """Raises Draining once the time for what runs has passed."""
        await self._over.wait()
        raise Draining("the gateway left before the answer was made")
