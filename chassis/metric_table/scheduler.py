"""What waits and why, how batches are formed, what is promised."""

from headrace.chassis.metric_table.metric import LONG_S, SIZES, counter, gauge, histogram

_SCHEDULER = ("scheduler",)

QUEUE_REQUESTS = gauge(
    "queue_requests",
    _SCHEDULER,
    "class",
    "requests",
    "Requests that wait for a device.",
    "Slots or KV full: add executors. Neither full: see `headrace doctor`.",
)
QUEUE_TOKENS = gauge(
    "queue_tokens",
    _SCHEDULER,
    "class",
    "tokens",
    "Their prompts and longest answers.",
    "As queue requests.",
)
QUEUE_LIMIT_REQUESTS = gauge(
    "queue_limit_requests",
    _SCHEDULER,
    "",
    "requests",
    "How many may wait, of each class.",
    "Nothing: a setting.",
)
QUEUE_AGE_SECONDS = gauge(
    "queue_age_seconds",
    _SCHEDULER,
    "class",
    "seconds",
    "How long the oldest has waited.",
    "realtime: add executors now. batch: its share is small under load, `scheduler.batch_floor` raises it.",
)
QUEUE_WAIT_SECONDS = histogram(
    "queue_wait_seconds",
    _SCHEDULER,
    "class reason",
    "seconds",
    "From submission to dispatch, by what was last waited for.",
    "slots: more slots or executors. memory: more `executor.kv_bytes`. company: a smaller window.",
    LONG_S,
)
QUEUE_REFUSALS = counter(
    "queue_refusals",
    _SCHEDULER,
    "class reason",
    "requests",
    "Requests that the scheduler refused.",
    "As refusals.",
)
BATCHES = counter(
    "batches",
    _SCHEDULER,
    "model reason",
    "batches",
    "Dispatches, by why the batch was closed.",
    "Mostly `capacity`: devices are full. Mostly `window`: too little load to fill a bucket.",
)
BATCH_SIZE = histogram(
    "batch_size",
    _SCHEDULER,
    "model",
    "requests",
    "Requests dispatched together.",
    "Nothing; small and queues long: slots come free one by one.",
    SIZES,
)
BATCH_TOKENS = counter(
    "batch_tokens",
    _SCHEDULER,
    "model",
    "tokens",
    "Real tokens of padded batches.",
    "Nothing: it is work done.",
)
BATCH_PADDING_TOKENS = counter(
    "batch_padding_tokens",
    _SCHEDULER,
    "model",
    "tokens",
    "What padded batches compute beside their real tokens.",
    "Bucket edges do not fit the lengths: `headrace scheduler set buckets=adaptive`.",
)
SCHEDULING_SECONDS = counter(
    "scheduling_seconds",
    _SCHEDULER,
    "",
    "seconds",
    "Time spent deciding.",
    "Above a tenth of the devices' step time: shard by model, or fewer, larger requests.",
)
DISPLACEMENTS = counter(
    "displacements",
    _SCHEDULER,
    "",
    "requests",
    "How often a running request made room for a realtime one.",
    "A storm: too little room for realtime; add executors or lower `scheduler.max_displacements`.",
)
EXECUTORS = gauge(
    "executors",
    _SCHEDULER,
    "state",
    "executors",
    "Members, `ready` or `draining`.",
    "Nothing; low: an executor was lost, see its log.",
)
REQUESTS_LOST = counter(
    "requests_lost",
    _SCHEDULER,
    "",
    "requests",
    "Requests whose executor was lost under them.",
    "See the executor's log and memory; the requests went elsewhere.",
)
POOL_SLOTS_RESERVED = gauge(
    "pool_slots_reserved",
    _SCHEDULER,
    "",
    "slots",
    "Slots promised on all executors.",
    "Near the total: add executors.",
)
POOL_SLOTS = gauge("pool_slots", _SCHEDULER, "", "slots", "Slots of all executors.", "Nothing: capacity.")
POOL_BLOCKS_RESERVED = gauge(
    "pool_blocks_reserved",
    _SCHEDULER,
    "",
    "blocks",
    "KV blocks promised on all executors.",
    "Near the total: more KV memory.",
)
POOL_BLOCKS = gauge("pool_blocks", _SCHEDULER, "", "blocks", "KV blocks of all executors.", "Nothing: capacity.")
