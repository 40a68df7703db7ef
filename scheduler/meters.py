"""What the scheduler records: of each decision as it is carried out, and of the state when scraped."""

from opentelemetry.trace import SpanContext

from headrace.chassis.metric_table import scheduler as table
from headrace.chassis.metrics import Metrics, Total, exemplar
from headrace.core.errors import HeadraceError
from headrace.core.request import QosClass
from headrace.scheduler.loop import SchedulerLoop
from headrace.scheduler.policy.commands import Dispatch, Member
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.state import State


class SchedulerMeters:
    """Told of commands; `watch` has it read the rest with each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._wait_seconds = metrics.histogram(table.QUEUE_WAIT_SECONDS)
        self._refusals = metrics.counter(table.QUEUE_REFUSALS)
        self._batches = metrics.counter(table.BATCHES)
        self._batch_size = metrics.histogram(table.BATCH_SIZE)
        self._batch_tokens = metrics.counter(table.BATCH_TOKENS)
        self._padding_tokens = metrics.counter(table.BATCH_PADDING_TOKENS)

    def dispatched(self, dispatch: Dispatch) -> None:
        model = dispatch.members[0].request.model
        self._batches.labels(model, dispatch.close_reason.name.lower()).inc()
        self._batch_size.labels(model).observe(len(dispatch.members))
        if dispatch.padded_tokens:
            self._batch_tokens.labels(model).inc(dispatch.prompt_tokens)
            self._padding_tokens.labels(model).inc(dispatch.padding_tokens)

    def waited(self, member: Member, context: SpanContext) -> None:
        """One member of a dispatch, and the context of its queue span."""
        qos = QosClass(member.request.qos_class).name.lower()
        self._wait_seconds.labels(qos, member.wait_reason.value).observe(member.waited_s, exemplar(context))

    def refused(self, request: Request, error: HeadraceError) -> None:
        self._refusals.labels(QosClass(request.qos_class).name.lower(), error.reason).inc()

    def watch(self, loop: SchedulerLoop) -> None:
        """Reads the loop's state with each scrape."""
        metrics = self._metrics
        requests, tokens = metrics.gauge(table.QUEUE_REQUESTS), metrics.gauge(table.QUEUE_TOKENS)
        age, limit = metrics.gauge(table.QUEUE_AGE_SECONDS), metrics.gauge(table.QUEUE_LIMIT_REQUESTS)
        executors = metrics.gauge(table.EXECUTORS)
        reserved, slots = metrics.gauge(table.POOL_SLOTS_RESERVED), metrics.gauge(table.POOL_SLOTS)
        blocks_reserved, blocks = metrics.gauge(table.POOL_BLOCKS_RESERVED), metrics.gauge(table.POOL_BLOCKS)
        scheduling = Total(metrics.counter(table.SCHEDULING_SECONDS))
        displacements = Total(metrics.counter(table.DISPLACEMENTS))
        lost = Total(metrics.counter(table.REQUESTS_LOST))

        def refresh() -> None:
            state, now = loop.observed(), loop.now()
            limit.set(state.limits.bounds.max_waiting_requests)
            since = oldest(state)
            for qos, backlog in state.queues.backlog.items():
                name = qos.name.lower()
                requests.labels(name).set(backlog.num_requests)
                tokens.labels(name).set(backlog.num_tokens)
                age.labels(name).set(now - since.get(qos, now))
            members = state.registry.executors.values()
            num_draining = sum(member.draining for member in members)
            executors.labels("ready").set(len(members) - num_draining)
            executors.labels("draining").set(num_draining)
            reserved.set(sum(member.ledger.num_slots for member in members))
            slots.set(sum(member.ledger.shape.num_slots for member in members))
            blocks_reserved.set(sum(member.ledger.num_blocks for member in members))
            blocks.set(sum(member.ledger.shape.num_blocks for member in members))
            scheduling.is_now(loop.busy_s)
            displacements.is_now(state.tally.displaced)
            lost.is_now(state.tally.lost)

        metrics.before_scrape(refresh)


def oldest(state: State) -> dict[QosClass, float]:
    """Since when the longest waiting of each class waits, on its clock; classes with nobody are left out."""
    since: dict[QosClass, float] = {}
    for waiting in state.queues.by_id.values():
        qos = QosClass(waiting.request.qos_class)
        since[qos] = min(waiting.since, since.get(qos, waiting.since))
    return since
