import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from octavo.v1 import jobs_pb2 as _jobs_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BuildSpec(_message.Message):
    __slots__ = ("model", "targets", "recipe_preset", "recipe_yaml", "context_length", "ars", "options", "target_options", "recipe_texts")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TargetOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RecipeTextsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    RECIPE_PRESET_FIELD_NUMBER: _ClassVar[int]
    RECIPE_YAML_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ARS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TARGET_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RECIPE_TEXTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    targets: _containers.RepeatedScalarFieldContainer[str]
    recipe_preset: str
    recipe_yaml: str
    context_length: int
    ars: _containers.RepeatedScalarFieldContainer[int]
    options: _containers.ScalarMap[str, str]
    target_options: _containers.ScalarMap[str, str]
    recipe_texts: _containers.ScalarMap[str, str]
    def __init__(self, model: _Optional[str] = ..., targets: _Optional[_Iterable[str]] = ..., recipe_preset: _Optional[str] = ..., recipe_yaml: _Optional[str] = ..., context_length: _Optional[int] = ..., ars: _Optional[_Iterable[int]] = ..., options: _Optional[_Mapping[str, str]] = ..., target_options: _Optional[_Mapping[str, str]] = ..., recipe_texts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SubmitBuildRequest(_message.Message):
    __slots__ = ("spec", "idempotency_key", "timeout", "priority")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    spec: BuildSpec
    idempotency_key: str
    timeout: _duration_pb2.Duration
    priority: int
    def __init__(self, spec: _Optional[_Union[BuildSpec, _Mapping]] = ..., idempotency_key: _Optional[str] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., priority: _Optional[int] = ...) -> None: ...

class SubmitBuildResponse(_message.Message):
    __slots__ = ("build", "created")
    BUILD_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    build: Build
    created: bool
    def __init__(self, build: _Optional[_Union[Build, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class Build(_message.Message):
    __slots__ = ("job", "spec", "progress", "result")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    job: _jobs_pb2.Job
    spec: BuildSpec
    progress: BuildProgress
    result: BuildResult
    def __init__(self, job: _Optional[_Union[_jobs_pb2.Job, _Mapping]] = ..., spec: _Optional[_Union[BuildSpec, _Mapping]] = ..., progress: _Optional[_Union[BuildProgress, _Mapping]] = ..., result: _Optional[_Union[BuildResult, _Mapping]] = ...) -> None: ...

class BuildProgress(_message.Message):
    __slots__ = ("stage", "done", "total", "what", "num_stages_done", "elapsed", "target")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_DONE_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    stage: str
    done: int
    total: int
    what: str
    num_stages_done: int
    elapsed: _duration_pb2.Duration
    target: str
    def __init__(self, stage: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., what: _Optional[str] = ..., num_stages_done: _Optional[int] = ..., elapsed: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., target: _Optional[str] = ...) -> None: ...

class BuildStage(_message.Message):
    __slots__ = ("stage", "cached", "duration", "size_bytes", "peak_memory_bytes", "metrics", "gates", "warnings", "worst", "target")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    WORST_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    stage: str
    cached: bool
    duration: _duration_pb2.Duration
    size_bytes: int
    peak_memory_bytes: int
    metrics: _containers.ScalarMap[str, float]
    gates: _containers.RepeatedCompositeFieldContainer[BuildGate]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    worst: _containers.RepeatedCompositeFieldContainer[TensorLoss]
    target: str
    def __init__(self, stage: _Optional[str] = ..., cached: _Optional[bool] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., size_bytes: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., gates: _Optional[_Iterable[_Union[BuildGate, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ..., worst: _Optional[_Iterable[_Union[TensorLoss, _Mapping]]] = ..., target: _Optional[str] = ...) -> None: ...

class BuildGate(_message.Message):
    __slots__ = ("limit", "value", "passes", "advisory")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    ADVISORY_FIELD_NUMBER: _ClassVar[int]
    limit: str
    value: float
    passes: bool
    advisory: bool
    def __init__(self, limit: _Optional[str] = ..., value: _Optional[float] = ..., passes: _Optional[bool] = ..., advisory: _Optional[bool] = ...) -> None: ...

class TensorLoss(_message.Message):
    __slots__ = ("tensor", "sqnr_db")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    SQNR_DB_FIELD_NUMBER: _ClassVar[int]
    tensor: str
    sqnr_db: float
    def __init__(self, tensor: _Optional[str] = ..., sqnr_db: _Optional[float] = ...) -> None: ...

class BuildResult(_message.Message):
    __slots__ = ("outcome", "duration", "stages", "files")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    duration: _duration_pb2.Duration
    stages: _containers.RepeatedCompositeFieldContainer[BuildStage]
    files: _containers.RepeatedCompositeFieldContainer[BuildFile]
    def __init__(self, outcome: _Optional[str] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., stages: _Optional[_Iterable[_Union[BuildStage, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[BuildFile, _Mapping]]] = ...) -> None: ...

class BuildFile(_message.Message):
    __slots__ = ("name", "size_bytes", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class GetBuildRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetBuildResponse(_message.Message):
    __slots__ = ("build",)
    BUILD_FIELD_NUMBER: _ClassVar[int]
    build: Build
    def __init__(self, build: _Optional[_Union[Build, _Mapping]] = ...) -> None: ...

class ListBuildsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states", "tenant")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[_jobs_pb2.JobState]
    tenant: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_jobs_pb2.JobState, str]]] = ..., tenant: _Optional[str] = ...) -> None: ...

class ListBuildsResponse(_message.Message):
    __slots__ = ("builds", "next_page_token")
    BUILDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    builds: _containers.RepeatedCompositeFieldContainer[Build]
    next_page_token: str
    def __init__(self, builds: _Optional[_Iterable[_Union[Build, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchBuildRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class WatchBuildResponse(_message.Message):
    __slots__ = ("build", "progress", "stage")
    BUILD_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    build: Build
    progress: BuildProgress
    stage: BuildStage
    def __init__(self, build: _Optional[_Union[Build, _Mapping]] = ..., progress: _Optional[_Union[BuildProgress, _Mapping]] = ..., stage: _Optional[_Union[BuildStage, _Mapping]] = ...) -> None: ...

class DownloadBuildRequest(_message.Message):
    __slots__ = ("id", "names", "first_offset")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    id: str
    names: _containers.RepeatedScalarFieldContainer[str]
    first_offset: int
    def __init__(self, id: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., first_offset: _Optional[int] = ...) -> None: ...

class DownloadBuildResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: FileChunk
    def __init__(self, chunk: _Optional[_Union[FileChunk, _Mapping]] = ...) -> None: ...

class FileChunk(_message.Message):
    __slots__ = ("file", "offset", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: BuildFile
    offset: int
    data: bytes
    def __init__(self, file: _Optional[_Union[BuildFile, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ListTargetsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTargetsResponse(_message.Message):
    __slots__ = ("targets",)
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[BuildTarget]
    def __init__(self, targets: _Optional[_Iterable[_Union[BuildTarget, _Mapping]]] = ...) -> None: ...

class BuildTarget(_message.Message):
    __slots__ = ("name", "missing")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    name: str
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckBuildRequest(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: BuildSpec
    def __init__(self, spec: _Optional[_Union[BuildSpec, _Mapping]] = ...) -> None: ...

class CheckBuildResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FollowBuildRequest(_message.Message):
    __slots__ = ("job_id", "fence")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    fence: int
    def __init__(self, job_id: _Optional[str] = ..., fence: _Optional[int] = ...) -> None: ...

class FollowBuildResponse(_message.Message):
    __slots__ = ("progress", "stage", "ended")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    progress: BuildProgress
    stage: BuildStage
    ended: bool
    def __init__(self, progress: _Optional[_Union[BuildProgress, _Mapping]] = ..., stage: _Optional[_Union[BuildStage, _Mapping]] = ..., ended: _Optional[bool] = ...) -> None: ...

class ReadBuildFilesRequest(_message.Message):
    __slots__ = ("job_id", "names", "first_offset")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    names: _containers.RepeatedScalarFieldContainer[str]
    first_offset: int
    def __init__(self, job_id: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., first_offset: _Optional[int] = ...) -> None: ...

class ReadBuildFilesResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: FileChunk
    def __init__(self, chunk: _Optional[_Union[FileChunk, _Mapping]] = ...) -> None: ...
