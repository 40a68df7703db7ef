"""How evenly tenants were served."""

from collections.abc import Mapping, Sequence


def max_min_shares(asked: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Each gets what it asks for or an even part of what is left, whichever is less."""
    shares: dict[str, float] = {}
    left = capacity
    for place, (name, wish) in enumerate(sorted(asked.items(), key=lambda item: item[1])):
        shares[name] = min(wish, left / (len(asked) - place))
        left -= shares[name]
    return shares


def jain(values: Sequence[float]) -> float | None:
    """1 where all are equal, 1/n where one has all (Jain, Chiu, Hawe 1984); None of nothing."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def fairness(asked: Mapping[str, float], served: Mapping[str, float]) -> float | None:
    """Jain's index over what each tenant was served, relative to its max-min fair share of all that was served."""
    shares = max_min_shares(asked, sum(served.values()))
    return jain([served.get(name, 0.0) / share for name, share in shares.items() if share > 0])
