"""Single keys from the terminal, without waiting for a line."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keys_pressed() -> Iterator[asyncio.Queue[str]]:
    """A queue of what is pressed within the block; nothing comes where the input is no terminal."""
    pressed: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield pressed
        return
    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(fd)

    def read() -> None:
        text = os.read(fd, 64).decode(errors="replace")
        if len(text) == 1 or not text.startswith("\x1b"):  # an arrow and the like is escape and more: no key of ours
            for key in text:
                pressed.put_nowait(key)

    try:
        tty.setcbreak(fd)
        loop.add_reader(fd, read)
        yield pressed
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
