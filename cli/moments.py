"""Moments as a user says them: how long ago, or a date and time."""

import re
from datetime import datetime, timedelta

from headrace.core.errors import InvalidRequest

_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str, now: datetime, field: str) -> datetime:
    """`90s`, `10m`, `2h` or `1d` before `now`, or a time in ISO 8601, in `now`'s zone where it names none.

    Raises InvalidRequest for `field`.
    """
    try:
        if found := _AGO.fullmatch(text):
            return now - timedelta(**{_UNITS[found[2]]: float(found[1])})
        named = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{text!r} is no time: say 90s, 10m, 2h, 1d or 2026-01-31T12:00", field=field) from error
    return named if named.tzinfo else named.replace(tzinfo=now.tzinfo)


def unix_ns(time: datetime) -> int:
    """Nanoseconds since 1970."""
    return int(time.timestamp() * 1e9)
