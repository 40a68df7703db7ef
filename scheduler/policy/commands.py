"""What the scheduler decides: values that the shell turns into frames and spans."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from headrace.core.errors import HeadraceError
from headrace.core.packing import Row
from headrace.core.request import Precision
from headrace.scheduler.policy.events import Request


class CloseReason(IntEnum):
    """Why a batch was closed. Values equal those on the wire."""

    FULL = 1
    TOKEN_BUDGET = 2
    CAPACITY = 3
    IDLE = 4
    BUCKET = 5
    WINDOW = 6
    DEADLINE = 7


class WaitReason(StrEnum):
    """What a request last waited for."""

    NONE = "none"
    QUEUE = "queue"
    SLOTS = "slots"
    MEMORY = "memory"
    COMPANY = "company"  # its padded batch is open while the device is busy


@dataclass(frozen=True, slots=True)
class Refusal:
    """A core error as a value: commands compare equal where they say the same."""

    kind: type[HeadraceError]
    message: str
    field: str = ""
    limit: str = ""
    retry_after_s: float | None = None

    def error(self) -> HeadraceError:
        return self.kind(self.message, field=self.field, limit=self.limit, retry_after_s=self.retry_after_s)


@dataclass(frozen=True, slots=True)
class Displacement:
    """A running request that gives its slot, and with `drop_kv` its blocks, to another until it is resumed."""

    request_id: str
    drop_kv: bool


@dataclass(frozen=True, slots=True)
class Member:
    """One request of a batch: the precision that will serve it, how it waited, who makes room for it.

    `position` is how many of its model were ahead of it when it came.
    """

    request: Request
    precision: Precision
    position: int
    wait_reason: WaitReason
    waited_s: float
    displaced: tuple[Displacement, ...] = ()


@dataclass(frozen=True, slots=True)
class Dispatch:
    """These requests go to this executor now; their capacity is reserved.

    Of a padded batch, `padded_tokens` is the length of each row and `batch_rows` how many rows there could have been; 0
    where nothing is padded. `rows` of a packed one are its members, by place, that share a row; else each has its own.
    """

    batch_id: str
    executor_id: str
    executor_address: str
    members: tuple[Member, ...]
    close_reason: CloseReason
    padded_tokens: int = 0
    batch_rows: int = 0
    rows: tuple[Row, ...] = ()

    @property
    def num_rows(self) -> int:
        """That hold a member."""
        return len(self.rows) or len(self.members)

    @property
    def prompt_tokens(self) -> int:
        """Of all members."""
        return sum(member.request.prompt_tokens for member in self.members)

    @property
    def padding_tokens(self) -> int:
        """What the rows are longer than their prompts, together."""
        return self.num_rows * self.padded_tokens - self.prompt_tokens if self.padded_tokens else 0


@dataclass(frozen=True, slots=True)
class Refuse:
    """This request is not served."""

    request: Request
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Drop:
    """This request's gateway no longer wants it, and hears nothing more of it."""

    request: Request


@dataclass(frozen=True, slots=True)
class Resume:
    """These displaced requests of the executor have their slots, and where they lost them their blocks, again."""

    executor_id: str
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Renew:
    """The executor's lease runs from now."""

    executor_id: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The executor is no member: it has to enlist again."""

    executor_id: str
    refusal: Refusal


Command = Dispatch | Refuse | Drop | Resume | Renew | Dismiss
