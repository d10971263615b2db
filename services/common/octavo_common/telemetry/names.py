"""All names that telemetry uses: attributes of the GenAI conventions, and our metrics with units, buckets and labels.

The conventions moved to their own repository and are still in development; so the names are kept here, not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Attributes of spans and of the gen_ai.* metrics.
PROVIDER = "octavo"
GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K = "gen_ai.request.top_k"
GEN_AI_REQUEST_SEED = "gen_ai.request.seed"
GEN_AI_REQUEST_STREAM = "gen_ai.request.stream"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
# Prompt tokens whose keys and values were in the prefix cache.
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION_NAME = "messaging.operation.name"
MESSAGING_DESTINATION_NAME = "messaging.destination.name"
RPC_SYSTEM = "rpc.system"
RPC_SERVICE = "rpc.service"
RPC_METHOD = "rpc.method"
RPC_GRPC_STATUS_CODE = "rpc.grpc.status_code"

# Our own attributes.
JOB_ID = "octavo.job.id"
JOB_FENCE = "octavo.job.fence"
JOB_TENANT = "octavo.job.tenant"
JOB_LOSSES = "octavo.job.losses"
WORKER_ID = "octavo.worker.id"
BUILD_MODEL = "octavo.build.model"
BUILD_TARGETS = "octavo.build.targets"
BUILD_OUTCOME = "octavo.build.outcome"
STAGE_CACHED = "octavo.build.stage.cached"
STAGE_TARGET = "octavo.build.stage.target"
STAGE_SECONDS = "octavo.build.stage.duration_s"
NUM_CHUNK_TOKENS = "octavo.prefill.num_tokens"
NUM_COMPUTED_TOKENS = "octavo.prefill.num_computed_tokens"

# Spans of a request, in the order in which they begin. A span named `{operation} {model}` encloses them.
SPAN_SEND = "send jobs"  # gateway, PRODUCER: the job is committed
SPAN_PLACE = "place jobs"  # scheduler: the round that placed the job, to its commit; gateway: the acceptance that did
SPAN_PROCESS = "process jobs"  # worker, edge builder; CONSUMER: parent and link are the span in the row
SPAN_QUEUE = "queue"  # worker: from acceptance to the first step that computed a token
SPAN_PREFILL_CHUNK = "prefill chunk"  # worker, one a step
SPAN_DECODE = "decode"  # worker, one a job, with the events below
EVENT_FIRST_TOKEN = "first_token"
EVENT_PREEMPTED = "preempted"
EVENT_RESUMED = "resumed"
EVENT_STAGE = "stage"  # of a build that has ended, one a stage

# Labels of metrics.
MODEL_NAME = "model_name"
FINISHED_REASON = "finished_reason"
METHOD = "method"
CODE = "code"
OUTCOME = "outcome"
STAGE = "stage"

_TIME_TO_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    *(160, 640, 2560),
)
_INTER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S = (*(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_CALL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_PLACEMENT_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_BUILD_S = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 2400, 4800, 9600)
_GEN_AI_DURATION_S = tuple(0.01 * 2**n for n in range(14))
_GEN_AI_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_GEN_AI_PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)


class Kind(Enum):
    """What a metric is."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric's definition. On /metrics counters end in `_total`, and dots are underscores."""

    name: str
    kind: Kind
    # UCUM: s, By, 1, or a thing counted in braces.
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, unit: str, description: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, unit=unit, description=description, labels=labels)


def _gauge(name: str, unit: str, description: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, unit=unit, description=description, labels=labels)


def _histogram(name: str, unit: str, description: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, unit=unit, description=description, labels=labels, buckets=buckets)


# Worker. Times are by the monotonic clock of the process that reports them.
NUM_REQUESTS_RUNNING = _gauge("octavo_num_requests_running", "{request}", "Sequences in the batch.", MODEL_NAME)
NUM_REQUESTS_WAITING = _gauge("octavo_num_requests_waiting", "{request}", "Sequences that wait.", MODEL_NAME)
KV_CACHE_USAGE = _gauge("octavo_kv_cache_usage_perc", "1", "Part of the KV blocks that are in use, 0 to 1.", MODEL_NAME)
CACHE_CONFIG_INFO = _gauge(
    "octavo_cache_config_info",
    "1",
    "Always 1; its labels say how the pool is made.",
    MODEL_NAME,
    "block_size",
    "num_blocks",
)
PREFIX_CACHE_QUERIES = _counter("octavo_prefix_cache_queries", "{token}", "Prompt tokens looked up.", MODEL_NAME)
PREFIX_CACHE_HITS = _counter("octavo_prefix_cache_hits", "{token}", "Prompt tokens found.", MODEL_NAME)
NUM_PREEMPTIONS = _counter(
    "octavo_num_preemptions", "{preemption}", "Sequences that gave their blocks back.", MODEL_NAME
)
PROMPT_TOKENS = _counter("octavo_prompt_tokens", "{token}", "Prompt tokens computed.", MODEL_NAME)
GENERATION_TOKENS = _counter("octavo_generation_tokens", "{token}", "Tokens generated.", MODEL_NAME)
REQUEST_SUCCESS = _counter("octavo_request_success", "{request}", "Jobs that ended well.", MODEL_NAME, FINISHED_REASON)
REQUEST_FAILURE = _counter("octavo_request_failure", "{request}", "Jobs that failed here.", MODEL_NAME, CODE)
TIME_TO_FIRST_TOKEN = _histogram(
    "octavo_time_to_first_token_seconds", "s", "From acceptance to the first token.", _TIME_TO_FIRST_TOKEN_S, MODEL_NAME
)
INTER_TOKEN_LATENCY = _histogram(
    "octavo_inter_token_latency_seconds", "s", "Between two tokens of a sequence.", _INTER_TOKEN_S, MODEL_NAME
)
E2E_REQUEST_LATENCY = _histogram(
    "octavo_e2e_request_latency_seconds", "s", "From acceptance to the last token.", _REQUEST_S, MODEL_NAME
)
REQUEST_QUEUE_TIME = _histogram(
    "octavo_request_queue_time_seconds", "s", "From acceptance to the first step.", _REQUEST_S, MODEL_NAME
)
REQUEST_INFERENCE_TIME = _histogram(
    "octavo_request_inference_time_seconds", "s", "From the first step to the last token.", _REQUEST_S, MODEL_NAME
)
REQUEST_PREFILL_TIME = _histogram(
    "octavo_request_prefill_time_seconds", "s", "From the first step to the first token.", _REQUEST_S, MODEL_NAME
)
REQUEST_DECODE_TIME = _histogram(
    "octavo_request_decode_time_seconds", "s", "From the first to the last token.", _REQUEST_S, MODEL_NAME
)
ITERATION_TOKENS = _histogram(
    "octavo_iteration_tokens_total", "{token}", "Tokens that one step computed.", _STEP_TOKENS, MODEL_NAME
)
REQUEST_PROMPT_TOKENS = _histogram(
    "octavo_request_prompt_tokens", "{token}", "Prompt tokens of a job.", _TOKENS, MODEL_NAME
)
REQUEST_GENERATION_TOKENS = _histogram(
    "octavo_request_generation_tokens", "{token}", "Output tokens of a job.", _TOKENS, MODEL_NAME
)
REQUEST_PARAMS_MAX_TOKENS = _histogram(
    "octavo_request_params_max_tokens", "{token}", "max_tokens of a job.", _TOKENS, MODEL_NAME
)
STEP_TIME = _histogram("octavo_step_time_seconds", "s", "What one step of the engine took.", _INTER_TOKEN_S, MODEL_NAME)

# Scheduler.
PLACING = _gauge("octavo_scheduler_placing", "1", "1 for the scheduler that places, 0 for those that stand by.")
NUM_JOBS_QUEUED = _gauge("octavo_jobs_queued", "{job}", "Jobs that waited for a worker at the last look.")
NUM_WORKERS = _gauge("octavo_workers", "{process}", "Workers by what can be given to them.", OUTCOME)
JOBS_ASSIGNED = _counter("octavo_jobs_assigned", "{job}", "Jobs given to a worker.")
JOBS_REAPED = _counter("octavo_jobs_reaped", "{job}", "Jobs whose worker did not renew its lease.", OUTCOME)
JOBS_EXPIRED = _counter("octavo_jobs_expired", "{job}", "Jobs whose deadline passed before they were placed.")
JOBS_PRUNED = _counter("octavo_jobs_pruned", "{job}", "Ended jobs deleted after the retention time.")
PLACEMENT_TIME = _histogram(
    "octavo_placement_time_seconds", "s", "From the time a job could be placed to its commit.", _PLACEMENT_S
)
PLACEMENT_ROUND_TIME = _histogram(
    "octavo_placement_round_time_seconds", "s", "What one round of placement took, with its statements.", _CALL_S
)

# Edge builder.
BUILDS = _counter("octavo_builds", "{build}", "Attempts at builds for devices, by how they ended.", OUTCOME)
BUILD_TIME = _histogram("octavo_build_time_seconds", "s", "What an attempt at a build took.", _BUILD_S, OUTCOME)
BUILD_STAGE_TIME = _histogram(
    "octavo_build_stage_time_seconds", "s", "What a stage took that was not found as cached.", _BUILD_S, STAGE
)
BUILD_DAMAGED = _counter(
    "octavo_build_damaged_artifacts",
    "{artifact}",
    "Kept results of stages that a build found damaged and made again.",
    STAGE,
)

# All services.
RPC_SERVER_DURATION = _histogram("octavo_rpc_server_duration_seconds", "s", "Calls served.", _CALL_S, METHOD, CODE)
RPC_CLIENT_DURATION = _histogram("octavo_rpc_client_duration_seconds", "s", "Calls made.", _CALL_S, METHOD, CODE)
EVENT_LOOP_LAG = _histogram(
    "octavo_event_loop_lag_seconds", "s", "How late a timer of the event loop fires; blocking code shows here.", _CALL_S
)
EVENT_LOOP_TASKS = _gauge("octavo_event_loop_tasks", "{task}", "Tasks of the event loop; what grows for ever leaks.")

# Gateway.
STREAMS_RESUMED = _counter("octavo_streams_resumed", "{stream}", "Streams that went on at another worker.")
JOBS_ACCEPTED = _counter("octavo_jobs_accepted", "{job}", "Jobs committed.", MODEL_NAME)
JOBS_REFUSED = _counter("octavo_jobs_refused", "{job}", "Requests that did not become a job.", CODE)

# GenAI conventions, from the gateway's point of view.
_GEN_AI_LABELS = (GEN_AI_OPERATION_NAME, GEN_AI_PROVIDER_NAME, GEN_AI_REQUEST_MODEL)
GEN_AI_SERVER_REQUEST_DURATION = _histogram(
    "gen_ai.server.request.duration", "s", "Duration of a request.", _GEN_AI_DURATION_S, *_GEN_AI_LABELS, ERROR_TYPE
)
GEN_AI_SERVER_TIME_TO_FIRST_TOKEN = _histogram(
    "gen_ai.server.time_to_first_token", "s", "Time in queue and prefill.", _GEN_AI_FIRST_TOKEN_S, *_GEN_AI_LABELS
)
GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN = _histogram(
    "gen_ai.server.time_per_output_token", "s", "(duration - TTFT) / (n - 1).", _GEN_AI_PER_TOKEN_S, *_GEN_AI_LABELS
)

ALL_METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
