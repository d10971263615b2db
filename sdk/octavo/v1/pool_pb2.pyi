from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetPoolRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPoolResponse(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: Pool
    def __init__(self, pool: _Optional[_Union[Pool, _Mapping]] = ...) -> None: ...

class GetWorkerPoolRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class GetWorkerPoolResponse(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: Pool
    def __init__(self, pool: _Optional[_Union[Pool, _Mapping]] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("step", "num_blocks", "block_size", "num_free_blocks", "num_cached_blocks", "num_used_blocks", "num_shared_blocks", "num_unused_slots", "blocks_per_cell", "cell_used", "cell_cached", "cell_shared", "cell_owner", "sequences", "num_sequences_left_out", "num_host_blocks", "num_free_host_blocks")
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_USED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNUSED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PER_CELL_FIELD_NUMBER: _ClassVar[int]
    CELL_USED_FIELD_NUMBER: _ClassVar[int]
    CELL_CACHED_FIELD_NUMBER: _ClassVar[int]
    CELL_SHARED_FIELD_NUMBER: _ClassVar[int]
    CELL_OWNER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    step: int
    num_blocks: int
    block_size: int
    num_free_blocks: int
    num_cached_blocks: int
    num_used_blocks: int
    num_shared_blocks: int
    num_unused_slots: int
    blocks_per_cell: int
    cell_used: _containers.RepeatedScalarFieldContainer[int]
    cell_cached: _containers.RepeatedScalarFieldContainer[int]
    cell_shared: _containers.RepeatedScalarFieldContainer[int]
    cell_owner: _containers.RepeatedScalarFieldContainer[int]
    sequences: _containers.RepeatedCompositeFieldContainer[PoolSequence]
    num_sequences_left_out: int
    num_host_blocks: int
    num_free_host_blocks: int
    def __init__(self, step: _Optional[int] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_cached_blocks: _Optional[int] = ..., num_used_blocks: _Optional[int] = ..., num_shared_blocks: _Optional[int] = ..., num_unused_slots: _Optional[int] = ..., blocks_per_cell: _Optional[int] = ..., cell_used: _Optional[_Iterable[int]] = ..., cell_cached: _Optional[_Iterable[int]] = ..., cell_shared: _Optional[_Iterable[int]] = ..., cell_owner: _Optional[_Iterable[int]] = ..., sequences: _Optional[_Iterable[_Union[PoolSequence, _Mapping]]] = ..., num_sequences_left_out: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., num_free_host_blocks: _Optional[int] = ...) -> None: ...

class PoolSequence(_message.Message):
    __slots__ = ("job_id", "choice", "phase", "num_tokens", "num_prompt_tokens", "num_computed_tokens", "num_blocks", "num_shared_blocks", "blocks", "num_host_blocks")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    choice: int
    phase: str
    num_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_blocks: int
    num_shared_blocks: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    num_host_blocks: int
    def __init__(self, job_id: _Optional[str] = ..., choice: _Optional[int] = ..., phase: _Optional[str] = ..., num_tokens: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_shared_blocks: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., num_host_blocks: _Optional[int] = ...) -> None: ...
