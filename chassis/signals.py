"""Every span, attribute and metric name, in one place. GenAI and RPC semantic conventions where they have a name."""

# spans
GATEWAY_GENERATE = "gateway.generate"
GATEWAY_EMBED = "gateway.embed"
GATEWAY_RERANK = "gateway.rerank"
GATEWAY_CLASSIFY = "gateway.classify"
PREPROCESS_PREPARE = "preprocess.prepare"
PREPROCESS_SCREEN = "preprocess.screen"
SCHEDULER_QUEUE = "scheduler.queue"
SCHEDULER_BATCH = "scheduler.batch"
EXECUTOR_PREFILL = "executor.prefill"
EXECUTOR_DECODE = "executor.decode"
EXECUTOR_ENCODE = "executor.encode"
EXECUTOR_BATCH = "executor.batch"

# events
FAILOVER = "failover"
OVERDUE_WAIT = "overdue_wait"  # an executor waits for its device far longer than predicted
OUTPUT_CHECK = "output_check"  # a run that found something or gave no verdict; attributes as the screen's
DISPLACED = "displaced"
RESUMED = "resumed"
LATE_STEP = "late_step"  # a step ended far later than predicted

# attributes of the OpenTelemetry GenAI conventions
GENAI_OPERATION = "gen_ai.operation.name"
GENAI_MODEL = "gen_ai.request.model"
GENAI_INPUT = "gen_ai.input.messages"  # only where telemetry.record_prompts asks for it
GENAI_MAX_TOKENS = "gen_ai.request.max_tokens"
GENAI_TEMPERATURE = "gen_ai.request.temperature"
GENAI_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GENAI_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GENAI_FINISH_REASONS = "gen_ai.response.finish_reasons"
ERROR_TYPE = "error.type"

# attributes of the RPC conventions
RPC_SYSTEM = "rpc.system"
RPC_SERVICE = "rpc.service"
RPC_METHOD = "rpc.method"
RPC_STATUS_CODE = "rpc.grpc.status_code"

# attributes of ours
REQUEST_ID = "headrace.request.id"
QOS_CLASS = "headrace.qos_class"
TENANT = "headrace.tenant"
CONSTRAINT = "headrace.constraint"  # what an answer's text must be: json_schema, json_object, regex, choice, grammar
LATE_MASKS = "headrace.constraint.late_masks"  # steps that a constrained answer missed, its mask not being there
SCREEN_POLICY = "headrace.screen.policy"
SCREEN_VERDICT = "headrace.screen.verdict"  # pass, a category, or none: no verdict; output check: late, failed
SCREEN_SCORE = "headrace.screen.score"
SCREEN_MODEL = "headrace.screen.model"
SCREEN_MS = "headrace.screen.ms"  # from the call's admission to the verdict
SCREEN_HELD_MS = "headrace.screen.held_ms"  # how long tokens that were there waited for the verdict
SCREEN_WINDOWS = "headrace.screen.windows"
SLA_FIRST_TOKEN_MS = "headrace.sla.first_token_ms"
SLA_TOTAL_MS = "headrace.sla.total_ms"
SLA_MISSED = "headrace.sla.missed"  # first_token_ms or total_ms: the first that was
SLA_OUTCOME = "headrace.sla.outcome"  # partial, cancel or continue: what became of it
CACHE = "headrace.cache"  # hit, miss, or away: whether the answer was there already
RESULT_HANDLE = "headrace.result.handle"
TAKEOVER = "headrace.result.takeover"  # the span event of a gateway that goes on with another's answer
PRECISION = "headrace.precision"
TTFT_MS = "headrace.ttft_ms"
ENGINE_MS = "headrace.engine_ms"  # of the steps up to the first token, those of others in them included
WAIT_FOR = "headrace.wait.for"  # what of the device is waited for
WAIT_LATENESS = "headrace.wait.lateness"  # late, or fault: given up
WAIT_PREDICTED_MS = "headrace.wait.predicted_ms"
WAITED_MS = "headrace.wait.waited_ms"
PROMPT_TOKENS = "headrace.prompt_tokens"
RAN_INSTEAD = "headrace.queue.ran_instead"  # class=requests dispatched while this one waited, of each that had any
LAST_BATCH_ID = "headrace.queue.last_batch"  # the one dispatched before this one's
STEP_MS = "headrace.step_ms"
QUEUE_POSITION = "headrace.queue.position"
WAIT_REASON = "headrace.queue.wait_reason"
DISPLACED_IDS = "headrace.queue.displaced"  # the requests that made room for this one
EXECUTOR_ID = "headrace.executor.id"
BATCH_ID = "headrace.batch.id"
BATCH_SIZE = "headrace.batch.size"
BATCH_TOKENS = "headrace.batch.tokens"
BATCH_PADDING = "headrace.batch.padding_tokens"
BATCH_FILL = "headrace.batch.fill"  # tokens / (tokens + padding tokens)
BATCH_BUCKET = "headrace.batch.bucket"
BATCH_CLOSE_REASON = "headrace.batch.close_reason"
BATCH_CLASSES = "headrace.batch.classes"
NUM_TEXTS = "headrace.num_texts"
PADDED_TOKENS = "headrace.padded_tokens"
NUM_STEPS = "headrace.num_steps"
REPLAYED_TOKENS = "headrace.replayed_tokens"  # of an answer that another executor had begun
FAILOVER_REASON = "headrace.failover.reason"
NUM_CHUNKS = "headrace.num_chunks"
