"""The classes of mixed traffic: one in ten REALTIME, three in ten BATCH."""

import random

from headrace.client.values import Qos

CLASSES: tuple[tuple[Qos, float], ...] = (("realtime", 0.1), ("normal", 0.6), ("batch", 0.3))


def draw_class(drawn: random.Random) -> Qos:
    """A request's class at random."""
    (qos,) = drawn.choices([name for name, _ in CLASSES], [share for _, share in CLASSES])
    return qos
