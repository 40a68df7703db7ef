"""What can happen to the scheduler. Times are relative seconds: the machine alone knows what time it is."""

from dataclasses import dataclass

from headrace.core.request import Precision, QosClass
from headrace.core.step_model import StepSample
from headrace.scheduler.policy.limits import Limits


@dataclass(frozen=True, slots=True)
class Request:
    """One submission's numbers: what it needs, how soon, for whom.

    `serial` numbers the submission in its process: a request id may come twice, a serial may not.
    `prefixes` are hashes of how the prompt begins, for every PREFIX_TOKENS tokens (core/prefix.py).
    `max_output_tokens` is of each of the `n` answers; `deadline_s` is the time left, None for no deadline.
    """

    serial: int
    request_id: str
    gateway_id: str
    model: str
    prompt_tokens: int
    max_output_tokens: int
    qos_class: QosClass = QosClass.NORMAL
    tenant: str = ""
    n: int = 1
    precision: Precision = Precision.ANY
    deadline_s: float | None = None
    prefixes: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Prompt tokens plus the most that the answers can have."""
        return self.prompt_tokens + self.n * self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Padding:
    """How a model's batches are padded: at most `batch_rows` rows, lengths in multiples of `align_tokens`.

    A row holds one member, or with `packs` as many as fit into it.
    """

    batch_rows: int
    align_tokens: int
    packs: bool = False


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in one precision on one executor. `padding` of an encoder: its batches are rectangles."""

    name: str
    precision: Precision
    context_tokens: int
    padding: Padding | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """A gateway asks for a placement."""

    request: Request


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A gateway gives up a request that it has not started; a placement that crosses it is void."""

    gateway_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class GatewayLost:
    """A gateway's stream ended: what it has waiting is dropped, what it has running the executors report."""

    gateway_id: str


@dataclass(frozen=True, slots=True)
class ExecutorEnlisted:
    """An executor offers its capacity, for the first time or again.

    `running_ids` are on it now; those also in `paused_ids` were displaced and hold no slot. A model in one precision is
    taken to be as fast on all executors of one `architecture`.
    """

    executor_id: str
    address: str
    models: tuple[LoadedModel, ...]
    num_slots: int
    num_blocks: int
    block_tokens: int
    running_ids: tuple[str, ...] = ()
    paused_ids: tuple[str, ...] = ()
    draining: bool = False
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class ExecutorReported:
    """A heartbeat with what has started and finished since the last one, and how long some of the steps took.

    `output_tokens` stand beside `finished_ids`, one for one, or are empty where they are not known. `paused_ids` are
    all that are displaced now. Prefixes are beginnings of prompts that its cache has from now on, or no longer.
    """

    executor_id: str
    started_ids: tuple[str, ...] = ()
    finished_ids: tuple[str, ...] = ()
    draining: bool = False
    output_tokens: tuple[int, ...] = ()
    paused_ids: tuple[str, ...] = ()
    steps: tuple[StepSample, ...] = ()
    added_prefixes: tuple[int, ...] = ()
    removed_prefixes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """An executor's stream ended."""

    executor_id: str


@dataclass(frozen=True, slots=True)
class Configured:
    """The policy's settings are these from now on."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: leases, deadlines and unstarted placements may be over."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The scheduler leaves: what waits and what still comes is refused, safe to submit to the next one."""


Occurrence = (
    Submitted | Withdrawn | GatewayLost | ExecutorEnlisted | ExecutorReported | ExecutorLost | Configured | Tick | Drain
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Several things that happened, in order: all are taken in before anything is dispatched."""

    occurrences: tuple[Occurrence, ...]


Event = Occurrence | Gathered
