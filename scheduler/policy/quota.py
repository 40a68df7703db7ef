"""How NORMAL and BATCH share what REALTIME leaves: deficit round robin in tokens; the share shrinks with load."""

from dataclasses import dataclass

from headrace.core.request import QosClass
from headrace.scheduler.policy.limits import Limits


def batch_share(load: float, limits: Limits) -> float:
    """BATCH's share beside NORMAL: whole up to `quota_load`, then in a straight line to the floor at full load."""
    over = (load - limits.quota_load) / (1.0 - limits.quota_load)
    return limits.batch_share - (limits.batch_share - limits.batch_floor) * min(max(over, 0.0), 1.0)


@dataclass(slots=True)
class Deficit:
    """What each of the two classes may still take, in tokens.

    The rounds of the textbook's loop are taken at once: as many as the sooner of the two needs.
    """

    normal: float = 0.0
    batch: float = 0.0

    def choose(self, normal_cost: float, batch_cost: float, share: float) -> QosClass:
        """Whose first request, of these costs, is next; the same again until `served`."""
        normal_rounds = max(0.0, normal_cost - self.normal) / (1.0 - share)
        batch_rounds = max(0.0, batch_cost - self.batch) / share
        rounds = min(normal_rounds, batch_rounds)
        self.normal += rounds * (1.0 - share)
        self.batch += rounds * share
        return QosClass.NORMAL if normal_rounds <= batch_rounds else QosClass.BATCH

    def served(self, qos_class: QosClass, cost: float) -> None:
        """One of the class went while the other waited."""
        if qos_class is QosClass.NORMAL:
            self.normal = max(0.0, self.normal - cost)
        else:
            self.batch = max(0.0, self.batch - cost)

    def clear(self) -> None:
        """Only one of the two waits: nobody saves up."""
        self.normal = self.batch = 0.0
