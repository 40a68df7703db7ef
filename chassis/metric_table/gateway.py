"""What callers see, and what the gateway holds for them."""

from headrace.chassis.metric_table.metric import LONG_S, SHORT_S, counter, gauge, histogram

_GATEWAY = ("gateway",)

REQUESTS = counter(
    "requests",
    _GATEWAY,
    "operation class model outcome",
    "calls",
    "Calls that have ended, by how: `ok` or an error's reason.",
    "Look at the outcome that grows; `headrace trace --list` shows such calls.",
)
REQUEST_SECONDS = histogram(
    "request_seconds",
    _GATEWAY,
    "operation class",
    "seconds",
    "From a call's arrival to its end.",
    "Compare with time to first token: a long answer is no fault, a long wait is. Exemplars name traces.",
    LONG_S,
)
TTFT_SECONDS = histogram(
    "ttft_seconds",
    _GATEWAY,
    "class",
    "seconds",
    "From a call's arrival until its first tokens go out.",
    "See queue wait, prepare seconds and screen held seconds: one of them is the reason.",
    LONG_S,
)
INTER_TOKEN_SECONDS = histogram(
    "inter_token_seconds",
    _GATEWAY,
    "class",
    "seconds",
    "Between two pieces of an answer that go out; includes a caller's slow reading.",
    "See step seconds; smaller `executor.step_tokens` or inter-token targets shorten prefill chunks.",
    SHORT_S,
)
INPUT_TOKENS = counter(
    "input_tokens",
    _GATEWAY,
    "class model",
    "tokens",
    "Prompt tokens of calls.",
    "More load: add executors.",
)
OUTPUT_TOKENS = counter(
    "output_tokens",
    _GATEWAY,
    "class model",
    "tokens",
    "Tokens of answers that have gone out.",
    "Nothing: it is work done.",
)
DEADLINE_MISSED = counter(
    "deadline_missed",
    _GATEWAY,
    "class when",
    "calls",
    "Calls whose deadline passed, `before_first_token` or `after` it.",
    "Before: capacity or quotas, see queue age. After: answers too long for the deadline, or slow steps.",
)
SLA_PROMISED = counter(
    "sla_promised",
    _GATEWAY,
    "class",
    "calls",
    "Calls that were promised a time to the first token or to the end.",
    "Nothing by itself.",
)
SLA_MISSED = counter(
    "sla_missed",
    _GATEWAY,
    "class promise outcome",
    "calls",
    "Promises broken, by what became of the answer.",
    "As missed deadlines; `partial`: the rest waits in the result store.",
)
FAILOVERS = counter(
    "failovers",
    _GATEWAY,
    "reason",
    "requests",
    "Requests that went on elsewhere because their executor was lost.",
    "Executors die: see their logs and the machines' memory.",
)
CACHE_LOOKUPS = counter(
    "cache_lookups",
    _GATEWAY,
    "outcome",
    "calls",
    "Calls that asked for the answer cache, by how that ended: `hit`, `miss` or `away`.",
    "away: the cache's store does not answer, see the gateway's log.",
)
REFUSALS = counter(
    "refusals",
    _GATEWAY,
    "class reason",
    "calls",
    "Calls refused because something was full, missing or leaving.",
    "QUEUE_FULL, OVERLOADED: add executors or lower the load. NO_EXECUTOR: an executor is gone or lacks the model.",
)
PRECISION_SERVED = counter(
    "precision_served",
    _GATEWAY,
    "precision",
    "placements",
    "Placements, by the precision that served.",
    "A precision that nobody asked for: the one wished for is not loaded anywhere.",
)
CONSTRAINTS = counter(
    "constrained_calls",
    _GATEWAY,
    "kind",
    "calls",
    "Calls whose answers are constrained, by what: a JSON schema, any JSON object, a regex, a choice, a grammar.",
    "Nothing by itself.",
)
CONSTRAINT_CHECK_SECONDS = histogram(
    "constraint_check_seconds",
    _GATEWAY,
    "",
    "seconds",
    "Compiling a constraint that was not known yet, with the wait for the thread that does it.",
    "Callers send large schemas, each another one: they should be smaller, or stay the same from call to call.",
    SHORT_S,
)
PERMITS_IN_USE = gauge(
    "permits_in_use",
    _GATEWAY,
    "unit",
    "see label unit",
    "Of the gateway's admission bounds, how much is taken.",
    "Near its limit callers are refused: add gateways, or raise the bound where memory allows.",
)
PERMITS_LIMIT = gauge(
    "permits_limit",
    _GATEWAY,
    "unit",
    "see label unit",
    "The gateway's admission bounds.",
    "Nothing: a setting.",
)
GATEWAY_WAITING = gauge(
    "gateway_waiting_requests",
    _GATEWAY,
    "",
    "requests",
    "Submitted to the scheduler, not placed yet.",
    "As queue requests; high while those are low: the scheduler is away.",
)
GATEWAY_RUNNING = gauge(
    "gateway_running_requests",
    _GATEWAY,
    "",
    "requests",
    "Running on executors for this gateway.",
    "Nothing by itself.",
)
UNREAD_FRAMES = gauge(
    "unread_frames",
    _GATEWAY,
    "",
    "frames",
    "Pieces of answers that wait for callers to read.",
    "Callers read slowly: look at their network or their loop. Tokens are merged, nothing is lost.",
)

SCREEN_VERDICTS = counter(
    "screen_verdicts",
    _GATEWAY,
    "policy verdict",
    "prompts",
    "Verdicts: `pass`, `found`, or `none`: not in time, or failed.",
    "`none` with `screen.on_timeout = open`: prompts pass unjudged; give the screen threads.",
)
SCREEN_SECONDS = histogram(
    "screen_seconds",
    _GATEWAY,
    "",
    "seconds",
    "From a call's admission to the verdict.",
    "More `screen.threads`, or a preprocess service of its own.",
    SHORT_S,
)
SCREEN_HELD_SECONDS = histogram(
    "screen_held_seconds",
    _GATEWAY,
    "",
    "seconds",
    "How long tokens that were there waited for the verdict.",
    "The screen is slower than prefill: as screen seconds.",
    SHORT_S,
)

OUTPUT_CHECK_RUNS = counter(
    "output_check_runs",
    _GATEWAY,
    "policy verdict",
    "runs",
    "Runs of the output check over the windows that were full: `pass`, `found`, `late`: not in time, or `failed`.",
    "`late`: more `screen.output.threads`, or a longer stride. `failed`: the log has the check's own error.",
)
OUTPUT_CHECK_SECONDS = histogram(
    "output_check_seconds",
    _GATEWAY,
    "policy",
    "seconds",
    "One run of the output check, with the wait for a thread.",
    "Answers that are blocked on findings come later by it: as output check runs that are late.",
    SHORT_S,
)
