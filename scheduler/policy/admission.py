"""Who may wait: what can never be served, and bounds by requests and tokens for each class."""

import math

from headrace.core.errors import InvalidRequest, NoExecutor, QueueFull
from headrace.core.request import Precision, QosClass
from headrace.scheduler.policy.commands import Refusal
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.ledger import need_of
from headrace.scheduler.policy.limits import Bounds
from headrace.scheduler.policy.ordering import Backlog
from headrace.scheduler.policy.placement import fits
from headrace.scheduler.policy.registry import Pool, Registry

RATE_WINDOW_S = 10.0
SHORTEST_RETRY_S = 0.05
LONGEST_RETRY_S = 30.0
UNKNOWN_RETRY_S = 1.0
RETRY_SHARE = 16
MOST = 2**31 - 1
"""More than any request has of anything."""


class DrainRate:
    """How fast a queue empties, requests and tokens a second: an exponential average over RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._requests = self._tokens = 0.0
        self._since: float | None = None
        self._at = 0.0

    def left(self, tokens: int, now: float) -> None:
        """One request of so many tokens left the queue to be served."""
        if self._since is None:
            self._since = self._at = now
        self._decay(now)
        self._requests += 1
        self._tokens += tokens

    def seconds_for(self, requests: float, tokens: float, now: float) -> float | None:
        """How long the queue takes to shrink by both; None where nothing has left it yet."""
        if self._since is None:
            return None
        self._decay(now)
        window_s = RATE_WINDOW_S * -math.expm1(-max(now - self._since, 1e-3) / RATE_WINDOW_S)
        return window_s * max(requests / max(self._requests, 1e-9), tokens / max(self._tokens, 1e-9))

    def _decay(self, now: float) -> None:
        factor = math.exp(-(now - self._at) / RATE_WINDOW_S)
        self._requests *= factor
        self._tokens *= factor
        self._at = now


def check_sane(request: Request) -> Refusal | None:
    """Numbers that no request can have."""
    if (
        0 < len(request.request_id) <= MOST
        and 0 <= request.prompt_tokens <= MOST
        and 0 <= request.max_output_tokens <= MOST
        and 1 <= request.n <= MOST
    ):
        return None
    bounds = [
        ("request_id", len(request.request_id), 1),
        ("prompt_tokens", request.prompt_tokens, 0),
        ("max_output_tokens", request.max_output_tokens, 0),
        ("n", request.n, 1),
    ]
    for field, value, low in bounds:
        if value < low:
            return Refusal(InvalidRequest, f"{field} is too small", field=field, limit=f">= {low}")
        if value > MOST:
            return Refusal(InvalidRequest, f"{field} is too large", field=field, limit=f"<= {MOST}")
    return None


def check_servable(request: Request, registry: Registry) -> Refusal | None:
    """Whether an executor is there that could serve the request if it had nothing else to do."""
    found = registry.pool(request.model, request.precision)
    if found is None:
        loaded = registry.precisions(request.model)
        if not loaded:
            return Refusal(NoExecutor, f"no executor serves model {request.model!r} now", field="model")
        names = ", ".join(precision.name.lower() for precision in loaded)
        wish = Precision(request.precision).name.lower()
        return Refusal(
            NoExecutor, f"no executor has {request.model!r} in {wish} or higher", field="precision", limit=names
        )
    pool = found[1]
    if not request.max_output_tokens and not pool.padded:
        message = f"{request.model!r} generates: an answer has a token at least"
        return Refusal(InvalidRequest, message, field="max_output_tokens", limit=">= 1")
    if any(fits(shape, context_tokens, request) for shape, context_tokens in pool.shapes):
        return None
    return _too_large(request, pool)


def _too_large(request: Request, pool: Pool) -> Refusal:
    context_tokens = max(context for _, context in pool.shapes)
    num_slots = max(shape.num_slots for shape, _ in pool.shapes)
    total = request.prompt_tokens + request.max_output_tokens
    if total > context_tokens:
        what = f"prompt and answer of {total} tokens exceed the context of {context_tokens}"
        return Refusal(InvalidRequest, what, field="max_output_tokens", limit=f"context of {context_tokens} tokens")
    if request.n > num_slots:
        return Refusal(
            InvalidRequest, f"{request.n} answers exceed {num_slots} slots", field="n", limit=f"<= {num_slots}"
        )
    shape = max((shape for shape, _ in pool.shapes), key=lambda shape: shape.num_blocks * shape.block_tokens)
    need = need_of(request, shape.block_tokens).num_blocks
    what = f"the request needs {need} KV blocks, no executor has more than {shape.num_blocks}"
    return Refusal(
        InvalidRequest, what, field="max_output_tokens", limit=f"{shape.num_blocks} blocks of {shape.block_tokens}"
    )


def check_room(request: Request, backlog: Backlog, bounds: Bounds, rate: DrainRate, now: float) -> Refusal | None:
    """Whether the class's queue takes one more.

    The delay is how long the queue takes to make room for the request, or for a part of the queue if that is more, so
    that those refused together do not come back together to a single place.
    """
    if backlog.num_requests == 0:
        return None
    over_requests = backlog.num_requests + 1 - bounds.max_waiting_requests
    over_tokens = backlog.num_tokens + request.tokens - bounds.max_waiting_tokens
    if over_requests <= 0 and over_tokens <= 0:
        return None
    spare_requests = max(over_requests, bounds.max_waiting_requests / RETRY_SHARE) if over_requests > 0 else 0
    spare_tokens = max(over_tokens, bounds.max_waiting_tokens / RETRY_SHARE) if over_tokens > 0 else 0
    delay_s = rate.seconds_for(spare_requests, spare_tokens, now)
    retry_after_s = UNKNOWN_RETRY_S if delay_s is None else min(max(delay_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)
    name = QosClass(request.qos_class).name.lower()
    limit = f"{bounds.max_waiting_requests} requests" if over_requests > 0 else f"{bounds.max_waiting_tokens} tokens"
    return Refusal(QueueFull, f"the {name} queue is full", field="qos_class", limit=limit, retry_after_s=retry_after_s)
