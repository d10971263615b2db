"""The SDK of Octavo: ask a platform for text, and watch and steer its jobs.

>>> import octavo
>>> with octavo.Client("127.0.0.1:50051", api_key="ok-...") as client:
...     for chunk in client.generate(messages=[{"role": "user", "content": "Hello"}]):
...         print(chunk.text, end="")
"""

from octavo.aio import AsyncClient, AsyncJobs
from octavo.aio_builds import AsyncBuilds
from octavo.aio_wire import AsyncTokenStream
from octavo.build_values import (
    Build,
    BuildEvent,
    BuildFile,
    BuildGate,
    BuildProgress,
    BuildResult,
    BuildStage,
    BuildTarget,
    TensorLoss,
)
from octavo.builds import Builds
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
    "AsyncBuilds",
    "AsyncClient",
    "AsyncJobs",
    "AsyncTokenStream",
    "Build",
    "BuildEvent",
    "BuildFile",
    "BuildGate",
    "BuildProgress",
    "BuildResult",
    "BuildStage",
    "BuildTarget",
    "Builds",
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
    "TensorLoss",
    "TokenLogprobs",
    "TokenStream",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Usage",
    "Worker",
]
