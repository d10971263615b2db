import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from octavo.v1 import common_pb2 as _common_pb2
from octavo.v1 import pool_pb2 as _pool_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamRequest(_message.Message):
    __slots__ = ("job_id", "fence", "first_token", "prefix_digest", "others")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    fence: int
    first_token: int
    prefix_digest: bytes
    others: _containers.RepeatedCompositeFieldContainer[ChoicePosition]
    def __init__(self, job_id: _Optional[str] = ..., fence: _Optional[int] = ..., first_token: _Optional[int] = ..., prefix_digest: _Optional[bytes] = ..., others: _Optional[_Iterable[_Union[ChoicePosition, _Mapping]]] = ...) -> None: ...

class ChoicePosition(_message.Message):
    __slots__ = ("first_token", "prefix_digest")
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    first_token: int
    prefix_digest: bytes
    def __init__(self, first_token: _Optional[int] = ..., prefix_digest: _Optional[bytes] = ...) -> None: ...

class StreamResponse(_message.Message):
    __slots__ = ("first_token", "token_ids", "text", "end", "logprobs", "prompt_logprobs", "choice")
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    first_token: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    end: StreamEnd
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    choice: int
    def __init__(self, first_token: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., end: _Optional[_Union[StreamEnd, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., choice: _Optional[int] = ...) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ("finish_reason", "usage", "failure", "cancelled", "choices")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _common_pb2.FinishReason
    usage: _common_pb2.Usage
    failure: _common_pb2.Failure
    cancelled: bool
    choices: _containers.RepeatedCompositeFieldContainer[_common_pb2.ChoiceEnd]
    def __init__(self, finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., failure: _Optional[_Union[_common_pb2.Failure, _Mapping]] = ..., cancelled: _Optional[bool] = ..., choices: _Optional[_Iterable[_Union[_common_pb2.ChoiceEnd, _Mapping]]] = ...) -> None: ...

class GetRecordsRequest(_message.Message):
    __slots__ = ("after_step",)
    AFTER_STEP_FIELD_NUMBER: _ClassVar[int]
    after_step: int
    def __init__(self, after_step: _Optional[int] = ...) -> None: ...

class GetRecordsResponse(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[StepRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[StepRecord, _Mapping]]] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("step", "time", "duration_ms", "num_decode_tokens", "num_prompt_tokens", "num_running", "num_waiting", "num_preempted", "num_free_blocks", "num_cached_blocks", "num_used_blocks", "num_rows", "num_swapped", "num_prefix_asked_tokens", "num_prefix_found_tokens")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_USED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_SWAPPED_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_ASKED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_FOUND_TOKENS_FIELD_NUMBER: _ClassVar[int]
    step: int
    time: _timestamp_pb2.Timestamp
    duration_ms: float
    num_decode_tokens: int
    num_prompt_tokens: int
    num_running: int
    num_waiting: int
    num_preempted: int
    num_free_blocks: int
    num_cached_blocks: int
    num_used_blocks: int
    num_rows: int
    num_swapped: int
    num_prefix_asked_tokens: int
    num_prefix_found_tokens: int
    def __init__(self, step: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., duration_ms: _Optional[float] = ..., num_decode_tokens: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_preempted: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_cached_blocks: _Optional[int] = ..., num_used_blocks: _Optional[int] = ..., num_rows: _Optional[int] = ..., num_swapped: _Optional[int] = ..., num_prefix_asked_tokens: _Optional[int] = ..., num_prefix_found_tokens: _Optional[int] = ...) -> None: ...
