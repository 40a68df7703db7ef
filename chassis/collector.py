"""Python's cyclic garbage collector, set for services: rare, since almost all of their objects go by reference count.

A full collection walks every live object; with a hundred thousand requests waiting that is a pause of a tenth of a
second, and a tenth of all processor time at the defaults.
"""

import gc

_YOUNG = 100_000
_RARELY = 50


def relax() -> None:
    """From now on the youngest objects are looked at after each 100,000 more, older ones 50 times more rarely."""
    gc.set_threshold(_YOUNG, _RARELY, _RARELY)
