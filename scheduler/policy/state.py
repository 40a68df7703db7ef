"""All that the scheduler knows. `machine.step` alone changes it."""

from dataclasses import dataclass, field

from headrace.core.precision import choose, parse_rules
from headrace.core.request import Precision, QosClass
from headrace.scheduler.policy.admission import DrainRate
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.lengths import Lengths
from headrace.scheduler.policy.limits import Limits
from headrace.scheduler.policy.ordering import LaneKey, Queues
from headrace.scheduler.policy.placement import fits
from headrace.scheduler.policy.prediction import Predictor
from headrace.scheduler.policy.prefix_index import PrefixIndex
from headrace.scheduler.policy.registry import Choices, Registry
from headrace.scheduler.policy.timers import Timers


@dataclass(slots=True)
class Tally:
    """Where every submission went: submitted = waiting + active + the rest."""

    submitted: int = 0
    refused: int = 0
    withdrawn: int = 0  # by its gateway, waiting or placed, or waiting when its gateway was lost
    finished: int = 0
    lost: int = 0  # placed on an executor that was lost
    unstarted: int = 0  # placed, and never started
    displaced: int = 0  # how often somebody made room for another; not a place of its own


@dataclass(slots=True)
class PaddedTally:
    """What a model's padded batches came to. Tokens are of prompts, and with the padding of each row."""

    batches: int = 0
    rows: int = 0
    possible_rows: int = 0
    prompt_tokens: int = 0
    padded_tokens: int = 0

    @property
    def fill(self) -> float:
        """Real tokens of those computed; 1 before the first."""
        return self.prompt_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def waste(self) -> float:
        """The share of computed tokens that are padding."""
        return 1.0 - self.fill

    @property
    def utilisation(self) -> float:
        """Rows with a member, of all that the batches could have had."""
        return self.rows / self.possible_rows if self.possible_rows else 0.0


@dataclass(slots=True)
class State:
    """`epoch` keeps batch ids of different lives of the service apart.

    `active` maps an id to the executors that hold it: one, save where executors enlist with the same running id.
    """

    limits: Limits
    epoch: str = "b"
    now: float = 0.0
    draining: bool = False
    last_batch: int = 0
    grace_ends: float | None = None  # until then requests wait for executors that have yet to enlist
    begun: bool = False
    queues: Queues = field(init=False)
    registry: Registry = field(default_factory=Registry)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    predictor: Predictor = field(default_factory=Predictor)
    rates: dict[QosClass, DrainRate] = field(default_factory=lambda: {qos: DrainRate() for qos in QosClass})
    active: dict[str, tuple[str, ...]] = field(default_factory=dict)
    deadlines: Timers[str] = field(default_factory=Timers)
    leases: Timers[str] = field(default_factory=Timers)
    starts: Timers[tuple[str, str]] = field(default_factory=Timers)  # (executor id, request id)
    windows: Timers[LaneKey] = field(default_factory=Timers)  # of lanes with open padded batches
    lengths: dict[tuple[str, Precision], Lengths] = field(default_factory=dict)  # of padded models
    padded: dict[str, PaddedTally] = field(default_factory=dict)  # by model
    choices: Choices = field(default_factory=dict)  # as those who wait are lined up
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.queues = Queues(self.limits.order)

    def wish_of(self, request: Request) -> Precision:
        """The request's own wish for a precision, or the rules' where its model is loaded in several."""
        loaded = self.choices.get(request.model)
        if loaded is None or request.precision is not Precision.ANY:
            return request.precision
        holding = [each for each, shapes in loaded.items() if any(fits(*shape, request) for shape in shapes)]
        rules = parse_rules(self.limits.precision_rules)
        return choose(rules, request.model, request.qos_class, request.prompt_tokens, holding)

    def hold(self, request_id: str, executor_id: str) -> None:
        self.active[request_id] = (*self.active.get(request_id, ()), executor_id)

    def forget(self, request_id: str, executor_id: str) -> None:
        """The executor holds the id no longer."""
        self.starts.cancel((executor_id, request_id))
        left = tuple(holder for holder in self.active.pop(request_id, ()) if holder != executor_id)
        if left:
            self.active[request_id] = left

    def next_due(self) -> float | None:
        """When time alone will next change something."""
        timers = (self.deadlines, self.leases, self.starts, self.windows)
        dues = [self.grace_ends, *(each.next_due() for each in timers)]
        return min((due for due in dues if due is not None), default=None)
