from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("id", "placing", "num_queued", "num_assigned")
    ID_FIELD_NUMBER: _ClassVar[int]
    PLACING_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_FIELD_NUMBER: _ClassVar[int]
    NUM_ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    id: str
    placing: bool
    num_queued: int
    num_assigned: int
    def __init__(self, id: _Optional[str] = ..., placing: _Optional[bool] = ..., num_queued: _Optional[int] = ..., num_assigned: _Optional[int] = ...) -> None: ...
