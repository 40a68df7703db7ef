"""Server-sent events of one POST over a connection of its own, with asyncio's streams alone."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any


async def post_events(port: int, path: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects that a server on loopback streams. Raises RuntimeError where it does not answer 200."""
    data = json.dumps(body).encode()
    fields = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        writer.write("\r\n".join(fields).encode() + b"\r\n\r\n" + data)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the server answered {status.decode().strip()}: {await reader.read(500)!r}")
        while line := await reader.readline():
            if line.startswith(b"data: {"):  # else headers, chunk sizes, blank lines, the end's mark
                yield json.loads(line[6:])
    finally:
        writer.close()


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def healthy(port: int) -> bool:
    """Whether GET /health answers 200."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    status = await reader.readline()
    writer.close()
    return b" 200 " in status


async def until_healthy(port: int, process: asyncio.subprocess.Process, ready_s: float) -> None:
    """Raises RuntimeError where the process ends first, TimeoutError after `ready_s`."""
    async with asyncio.timeout(ready_s):
        while not await healthy(port):
            if process.returncode is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}")
            await asyncio.sleep(0.2)
