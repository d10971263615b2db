import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlanModelRequest(_message.Message):
    __slots__ = ("model", "device", "own_figures", "precision", "kv_format", "num_prompt_tokens", "num_output_tokens", "batch", "tensor_parallel", "reserve")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    OWN_FIGURES_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    KV_FORMAT_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    model: str
    device: str
    own_figures: DeviceFigures
    precision: str
    kv_format: str
    num_prompt_tokens: int
    num_output_tokens: int
    batch: int
    tensor_parallel: int
    reserve: float
    def __init__(self, model: _Optional[str] = ..., device: _Optional[str] = ..., own_figures: _Optional[_Union[DeviceFigures, _Mapping]] = ..., precision: _Optional[str] = ..., kv_format: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., batch: _Optional[int] = ..., tensor_parallel: _Optional[int] = ..., reserve: _Optional[float] = ...) -> None: ...

class PlanModelResponse(_message.Message):
    __slots__ = ("plan", "choices")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    plan: ModelPlan
    choices: PlanChoices
    def __init__(self, plan: _Optional[_Union[ModelPlan, _Mapping]] = ..., choices: _Optional[_Union[PlanChoices, _Mapping]] = ...) -> None: ...

class DeviceFigures(_message.Message):
    __slots__ = ("memory_bytes", "bandwidth", "peak")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: float
    bandwidth: float
    peak: float
    def __init__(self, memory_bytes: _Optional[float] = ..., bandwidth: _Optional[float] = ..., peak: _Optional[float] = ...) -> None: ...

class PlanChoices(_message.Message):
    __slots__ = ("models", "devices", "precisions", "kv_formats")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PRECISIONS_FIELD_NUMBER: _ClassVar[int]
    KV_FORMATS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedScalarFieldContainer[str]
    devices: _containers.RepeatedScalarFieldContainer[str]
    precisions: _containers.RepeatedScalarFieldContainer[str]
    kv_formats: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, models: _Optional[_Iterable[str]] = ..., devices: _Optional[_Iterable[str]] = ..., precisions: _Optional[_Iterable[str]] = ..., kv_formats: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelPlan(_message.Message):
    __slots__ = ("model", "device", "precision", "kv_format", "tensor_parallel", "num_prompt_tokens", "num_output_tokens", "num_parameters", "context_length", "total_weight_bytes", "weight_bytes", "device_bytes", "reserve_bytes", "kv_room_bytes", "kv_bytes_per_token", "kv_bytes_per_sequence", "num_sequences", "least_tensor_parallel", "peak", "bandwidth", "ridge", "prefill", "decode", "decode_context", "decode_by_batch", "ridge_batch", "request_time", "notes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    KV_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LEAST_TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    RIDGE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    DECODE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DECODE_BY_BATCH_FIELD_NUMBER: _ClassVar[int]
    RIDGE_BATCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIME_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    device: str
    precision: str
    kv_format: str
    tensor_parallel: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_parameters: int
    context_length: int
    total_weight_bytes: int
    weight_bytes: int
    device_bytes: int
    reserve_bytes: int
    kv_room_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_sequence: int
    num_sequences: int
    least_tensor_parallel: int
    peak: float
    bandwidth: float
    ridge: float
    prefill: PlanStep
    decode: PlanStep
    decode_context: int
    decode_by_batch: _containers.RepeatedCompositeFieldContainer[PlanStep]
    ridge_batch: int
    request_time: _duration_pb2.Duration
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., device: _Optional[str] = ..., precision: _Optional[str] = ..., kv_format: _Optional[str] = ..., tensor_parallel: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., num_parameters: _Optional[int] = ..., context_length: _Optional[int] = ..., total_weight_bytes: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., device_bytes: _Optional[int] = ..., reserve_bytes: _Optional[int] = ..., kv_room_bytes: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., kv_bytes_per_sequence: _Optional[int] = ..., num_sequences: _Optional[int] = ..., least_tensor_parallel: _Optional[int] = ..., peak: _Optional[float] = ..., bandwidth: _Optional[float] = ..., ridge: _Optional[float] = ..., prefill: _Optional[_Union[PlanStep, _Mapping]] = ..., decode: _Optional[_Union[PlanStep, _Mapping]] = ..., decode_context: _Optional[int] = ..., decode_by_batch: _Optional[_Iterable[_Union[PlanStep, _Mapping]]] = ..., ridge_batch: _Optional[int] = ..., request_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class PlanStep(_message.Message):
    __slots__ = ("batch", "num_tokens", "flops", "num_bytes", "intensity", "bound", "time", "tokens_per_second")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    INTENSITY_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    batch: int
    num_tokens: int
    flops: float
    num_bytes: float
    intensity: float
    bound: str
    time: _duration_pb2.Duration
    tokens_per_second: float
    def __init__(self, batch: _Optional[int] = ..., num_tokens: _Optional[int] = ..., flops: _Optional[float] = ..., num_bytes: _Optional[float] = ..., intensity: _Optional[float] = ..., bound: _Optional[str] = ..., time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tokens_per_second: _Optional[float] = ...) -> None: ...
