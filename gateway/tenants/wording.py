"""How callers are told that they are not known: never with what they sent."""

from headrace.core.errors import Unauthenticated

AUTHORIZATION = "authorization"


def refused(what: str, limit: str = "a token in force") -> Unauthenticated:
    return Unauthenticated(what, field=AUTHORIZATION, limit=limit)
