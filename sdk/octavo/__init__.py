"""The SDK of Octavo: ask a platform for text, and watch and steer its jobs.

>>> import octavo
>>> with octavo.Client("127.0.0.1:50051", api_key="ok-...") as client:
...     for chunk in client.generate(messages=[{"role": "user", "content": "Hello"}]):
...         print(chunk.text, end="")
"""

from octavo.aio import AsyncClient, AsyncJobs
from octavo.aio_wire import AsyncTokenStream
from octavo.client import Client, Jobs
from octavo.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OctavoError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from octavo.planning import ModelPlan, PlanChoices, PlanStep
from octavo.pools import Pool, PoolSequence
from octavo.retry import RetryPolicy
from octavo.values import (
    Choice,
    Chunk,
    Failure,
    FinishReason,
    GenerationResult,
    Job,
    JobEvent,
    JobHandle,
    JobState,
    Model,
    StepRecord,
    TokenLogprobs,
    Usage,
    Worker,
)
from octavo.wire import TokenStream

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "AsyncClient",
    "AsyncJobs",
    "AsyncTokenStream",
    "CancelledError",
    "Choice",
    "Chunk",
    "Client",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "Failure",
    "FinishReason",
    "GenerationResult",
    "InternalError",
    "InvalidArgumentError",
    "Job",
    "JobEvent",
    "JobHandle",
    "JobState",
    "Jobs",
    "Model",
    "ModelPlan",
    "NotFoundError",
    "OctavoError",
    "PermissionDeniedError",
    "PlanChoices",
    "PlanStep",
    "Pool",
    "PoolSequence",
    "ResourceExhaustedError",
    "RetryPolicy",
    "StepRecord",
    "TokenLogprobs",
    "TokenStream",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Usage",
    "Worker",
]
