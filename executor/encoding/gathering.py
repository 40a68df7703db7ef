"""Batches that are still coming together: members arrive from several gateways, in any order. No clock inside."""

from collections import OrderedDict
from dataclasses import dataclass, field

from headrace.executor.encoding.task import Task

_REMEMBERED = 4096
"""Batches that went without some of their members, whose late ones must not wait again."""


@dataclass(slots=True)
class _Open:
    since: float
    tasks: list[Task] = field(default_factory=list)


class Gathering:
    """A batch is due once all its members are there, or `straggler_s` after the first one came."""

    def __init__(self, straggler_s: float) -> None:
        self._straggler_s = straggler_s
        self._open: OrderedDict[str, _Open] = OrderedDict()  # in the order of their first members
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._due: list[list[Task]] = []

    def __len__(self) -> int:
        return sum(len(batch.tasks) for batch in self._open.values()) + sum(map(len, self._due))

    def add(self, task: Task, now: float) -> None:
        batch = self._open.setdefault(task.batch_id, _Open(now))
        batch.tasks.append(task)
        if len(batch.tasks) >= task.batch_size or task.batch_id in self._gone:
            self._due.append(self._open.pop(task.batch_id).tasks)

    def remove(self, session: int, request_id: str | None) -> list[Task]:
        """Takes out a session's request, or all of the session's."""
        removed: list[Task] = []
        for tasks in (*(batch.tasks for batch in self._open.values()), *self._due):
            gone = [task for task in tasks if task.session == session and request_id in (None, task.request_id)]
            for task in gone:
                tasks.remove(task)
            removed += gone
        return removed

    def take(self, now: float) -> list[Task] | None:
        """The batch that has been due for longest; None where none is."""
        while self._open:
            batch_id, batch = next(iter(self._open.items()))
            if now - batch.since < self._straggler_s:
                break
            del self._open[batch_id]
            self._gone[batch_id] = None
            self._due.append(batch.tasks)
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        while self._due:
            if tasks := self._due.pop(0):
                return tasks
        return None

    def wait_s(self, now: float) -> float | None:
        """How long until a batch is due; None where nothing gathers."""
        if self._due:
            return 0.0
        if not self._open:
            return None
        return max(0.0, next(iter(self._open.values())).since + self._straggler_s - now)
