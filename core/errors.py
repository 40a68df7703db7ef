"""The error tree: every way in which a request can fail, each with a stable reason.

chassis/status.py maps it to gRPC status codes and back. Nothing here knows of gRPC.
"""

from typing import ClassVar


class HeadraceError(Exception):
    """Root of all errors that a caller may see.

    `field` names the input at fault, `limit` the bound that it broke, `retry_after_s` when to try again, `category`
    what a screen found.
    """

    reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        limit: str = "",
        retry_after_s: float | None = None,
        category: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.category = category


class InvalidRequest(HeadraceError):
    """The request can never be served as it stands."""

    reason = "INVALID_REQUEST"


class ScreenRejected(HeadraceError):
    """The legality screen refused the prompt."""

    reason = "SCREEN_REJECTED"


class Unauthenticated(HeadraceError):
    """No valid credentials."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(HeadraceError):
    """The caller's key does not allow this."""

    reason = "PERMISSION_DENIED"


class NotFound(HeadraceError):
    """The named thing does not exist."""

    reason = "NOT_FOUND"


class ModelNotFound(NotFound):
    """No model of this name is known."""

    reason = "MODEL_NOT_FOUND"


class ResultNotFound(NotFound):
    """No stored result of this handle."""

    reason = "RESULT_NOT_FOUND"


class Overloaded(HeadraceError):
    """Try again later: `retry_after_s` says when."""

    reason = "OVERLOADED"


class QueueFull(Overloaded):
    """The class's queue is at its bound."""

    reason = "QUEUE_FULL"


class PoolExhausted(Overloaded):
    """No KV blocks are left to reserve."""

    reason = "POOL_EXHAUSTED"


class TenantOverLimit(Overloaded):
    """The tenant's quota is used up."""

    reason = "TENANT_OVER_LIMIT"


class Unavailable(HeadraceError):
    """Nobody is there to serve; safe to try again."""

    reason = "UNAVAILABLE"


class NoExecutor(Unavailable):
    """No executor serves this model now."""

    reason = "NO_EXECUTOR"


class Draining(Unavailable):
    """The service is leaving and takes no new work."""

    reason = "DRAINING"


class DeviceFault(Unavailable):
    """The executor's device no longer answers in time; safe to try again elsewhere."""

    reason = "DEVICE_FAULT"


class Unsupported(HeadraceError):
    """This is not done here; the message says why, or what does it."""

    reason = "UNSUPPORTED"


class EngineNotReady(HeadraceError):
    """The engine is not loaded or not warm."""

    reason = "ENGINE_NOT_READY"


class DeadlineMissed(HeadraceError):
    """The deadline passed."""

    reason = "DEADLINE_MISSED"


class Cancelled(HeadraceError):
    """The caller went away."""

    reason = "CANCELLED"


class EngineFault(HeadraceError):
    """The engine failed; the log has the rest under the id in the message."""

    reason = "ENGINE_FAULT"


class ConfigError(HeadraceError):
    """The configuration is wrong; the message lists every fault."""

    reason = "CONFIG"


def _tree(root: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


ERROR_BY_REASON: dict[str, type[HeadraceError]] = {error.reason: error for error in _tree(HeadraceError)}
