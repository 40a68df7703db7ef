"""All that the scheduler knows. `machine.step` alone changes it."""

from dataclasses import dataclass, field

from headrace.core.request import QosClass
from headrace.scheduler.policy.admission import DrainRate
from headrace.scheduler.policy.limits import Limits
from headrace.scheduler.policy.ordering import Queues
from headrace.scheduler.policy.prediction import Predictor
from headrace.scheduler.policy.prefix_index import PrefixIndex
from headrace.scheduler.policy.registry import Registry
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
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.queues = Queues(self.limits.order)

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
        dues = [self.deadlines.next_due(), self.leases.next_due(), self.starts.next_due(), self.grace_ends]
        return min((due for due in dues if due is not None), default=None)
