"""What an executor's device does: steps, memory, cache."""

from headrace.chassis.metric_table.metric import SHORT_S, SIZES, counter, gauge, histogram

_EXECUTOR = ("executor",)
_DEVICES = ("executor", "encoder")

SLOTS = gauge("slots", _DEVICES, "", "slots", "Rows of the running batch.", "Nothing: a setting.")
SLOTS_IN_USE = gauge(
    "slots_in_use",
    _DEVICES,
    "",
    "slots",
    "Sequences, or texts, that run: concurrency of the device.",
    "At the bound with a queue: more `executor.num_slots` where memory allows, else more executors.",
)
RUNNING = gauge("running_requests", _DEVICES, "", "requests", "Requests on the device.", "Nothing by itself.")
PAUSED = gauge(
    "paused_requests",
    _EXECUTOR,
    "",
    "requests",
    "Displaced requests that wait for their slots.",
    "As displacements.",
)
STEP_SECONDS = histogram(
    "step_seconds",
    _DEVICES,
    "",
    "seconds",
    "One forward pass of the engine.",
    "Prefill chunks beside decodes: smaller `executor.step_tokens`. Else other processes take the cores.",
    SHORT_S,
)
STEP_ROWS = histogram(
    "step_rows",
    _DEVICES,
    "",
    "rows",
    "Sequences or texts of one pass.",
    "Nothing; low with a queue: see slots in use.",
    SIZES,
)
STEP_TOKENS = counter(
    "step_tokens",
    _DEVICES,
    "kind",
    "tokens",
    "Tokens computed: `prefill`, `decode`, `guess` of speculation, or `padding`.",
    "Mostly `prefill`: prompts that begin alike would gain by the prefix cache. `padding`: as batch padding. `guess`: "
    "compare speculation's tokens.",
)
DECODE_STEP_SECONDS = counter(
    "decode_step_seconds",
    _EXECUTOR,
    "rows",
    "seconds",
    "Passes that only decoded, by how many rows they had at most.",
    "As step seconds; with decode step tokens it says what larger batches gain.",
)
DECODE_STEP_TOKENS = counter(
    "decode_step_tokens",
    _EXECUTOR,
    "rows",
    "tokens",
    "Tokens of those passes.",
    "Nothing. A second of many rows that has no more than one of few: larger batches gain nothing here.",
)
USUAL_STEP_SECONDS = counter(
    "usual_step_seconds",
    _EXECUTOR,
    "",
    "seconds",
    "What passes that only decoded usually take at their number of rows and length of context, of the same passes as "
    "decode step seconds.",
    "Nothing. Decode step seconds over it, above 1.6: the device does the same work more slowly than before, see its "
    "clocks and what else runs there.",
)
SERVED = gauge(
    "served",
    _EXECUTOR,
    "model precision architecture",
    "executors",
    "1: what the executor has loaded, and on what it runs.",
    "Nothing: executors that say the same should be as fast.",
)
PEAK_TOKENS_PER_SECOND = gauge(
    "peak_tokens_per_second",
    _DEVICES,
    "",
    "tokens/s",
    "The fastest pass so far of 64 tokens or more: the measured peak.",
    "Nothing: compute density is step tokens over it.",
)
MEMORY_READ_BYTES = counter(
    "memory_read_bytes",
    _DEVICES,
    "what",
    "bytes",
    "Counted: `weights` once a pass, `kv` of all rows' contexts.",
    "Near the machine's bandwidth: larger batches share the weights' reads; lower precision halves them.",
)
MEMORY_MOVED_BYTES = counter(
    "memory_moved_bytes",
    _DEVICES,
    "",
    "bytes",
    "Measured: what a GPU's memory has read and written, of NVML's share of its peak (Hopper and later). "
    "Unproved on a device.",
    "As memory read bytes, which are counted; far above them: copies, or KV that is read more than once.",
)
MEMORY_PEAK_BYTES_PER_SECOND = gauge(
    "memory_peak_bytes_per_second",
    _DEVICES,
    "",
    "bytes/s",
    "Bandwidth of a GPU's memory, of its bus's width and highest clock. Unproved on a device.",
    "Nothing: bandwidth use is memory moved bytes over it.",
)
MEMORY_BUSY_RATIO = gauge(
    "memory_busy_ratio",
    _DEVICES,
    "",
    "ratio",
    "How much of the last moment a GPU's memory was read or written in, whatever the width: an upper bound of its "
    "use. Unproved on a device.",
    "As memory read bytes.",
)
DEVICE_CLOCK_HERTZ = gauge(
    "device_clock_hertz",
    _DEVICES,
    "kind",
    "hertz",
    "The device's clock: `now`, of a processor its fastest core's, and the `most` it can have. Not there where the "
    "system does not tell, as in most virtual machines.",
    "Nothing; `now` far below `most` under load: heat, a power limit or a power-saving governor.",
)
CLOCK_LIMITED_SECONDS = counter(
    "clock_limited_seconds",
    _DEVICES,
    "reason",
    "seconds",
    "How long the device's clock was held down, by `heat` or `power`. Of a GPU unproved on a device.",
    "Cooling or the power limit of that machine.",
)
LATE_STEPS = counter(
    "late_steps",
    _EXECUTOR,
    "",
    "steps",
    "Passes that took over four times as long as predicted, and 50 ms more: a device that missed its time.",
    "Clocks throttled, cores taken by others, memory swapped: look at the machine.",
)
LATE_MASKS = counter(
    "late_masks",
    _EXECUTOR,
    "",
    "rows",
    "Rows of constrained answers that were put in again, as what may follow was not known when their step was read.",
    "Grammars are costly, or the machine's cores are taken by others.",
)
OVERDUE_WAITS = counter(
    "overdue_waits",
    _EXECUTOR,
    "lateness",
    "waits",
    "Waits for a device's event that should long have been over: `late`, or `fault`, after which the executor leaves.",
    "An event was missed or the device hangs: see the executor's log and the device's. After a `fault` its requests go "
    "elsewhere.",
)
KV_BYTES = gauge(
    "kv_bytes",
    _EXECUTOR,
    "state",
    "bytes",
    "KV memory: `total`, `mapped`, `held` by sequences, `cached` prefixes, `reserved`.",
    "held + reserved near total: more `executor.kv_bytes`, fewer slots, or shorter answers.",
)
KV_FRAGMENTATION = gauge(
    "kv_fragmentation_ratio",
    _EXECUTOR,
    "",
    "ratio",
    "The share of mapped memory that holds nothing.",
    "Over 0.5 for long: after a peak; it goes back while idle.",
)
KV_CACHE_AGE_SECONDS = gauge(
    "kv_cache_age_seconds",
    _EXECUTOR,
    "",
    "seconds",
    "How long the least lately used cached block has been idle.",
    "Nothing; low with low hit rate: the cache turns over too fast, more KV memory.",
)
PREFIX_PROMPT_TOKENS = counter(
    "prefix_prompt_tokens",
    _EXECUTOR,
    "",
    "tokens",
    "Prompt tokens looked up in the prefix cache.",
    "Nothing by itself.",
)
PREFIX_CACHED_TOKENS = counter(
    "prefix_cached_tokens",
    _EXECUTOR,
    "",
    "tokens",
    "Of those, tokens found and not computed.",
    "Nothing: it is work saved.",
)
SPECULATION_PROPOSED_TOKENS = counter(
    "speculation_proposed_tokens",
    _EXECUTOR,
    "",
    "tokens",
    "Guessed tokens that had a row in a step.",
    "Nothing by itself; few of them accepted: `executor.speculation = 0` for models whose answers repeat little.",
)
SPECULATION_ACCEPTED_TOKENS = counter(
    "speculation_accepted_tokens",
    _EXECUTOR,
    "",
    "tokens",
    "Of those, tokens that came true: each saved its answer a step.",
    "Nothing: it is work saved.",
)
EXPERT_REQUESTS = counter(
    "expert_requests",
    _EXECUTOR,
    "outcome",
    "experts",
    "Experts that layers asked for, by whether they were on the device: `hit`, `early` (fetched ahead) or `miss`.",
    "Mostly `miss`: more `executor.resident_experts`, or smaller batches.",
)
EXPERT_STALL_SECONDS = counter(
    "expert_stall_seconds",
    _EXECUTOR,
    "",
    "seconds",
    "How long steps waited for experts to be copied.",
    "Near step seconds: experts on demand do not pay with this load; more resident experts, or a lower precision.",
)
EXPERT_COPIED_BYTES = counter(
    "expert_copied_bytes",
    _EXECUTOR,
    "reason",
    "bytes",
    "Experts copied to the device, on `demand` of a layer or `ahead` of it.",
    "As expert requests; near the link's bandwidth nothing else comes to the device.",
)
EXPERTS_WASTED = counter(
    "experts_wasted",
    _EXECUTOR,
    "",
    "experts",
    "Experts that were fetched ahead and had to go before anybody asked for them.",
    "A large share of those fetched ahead: topics change too fast to be learnt; they cost the link, not the answers.",
)
