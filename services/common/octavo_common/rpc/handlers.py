"""Rewrites gRPC method handlers. Knows no policy: interceptors use it to put something around a call."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeAlias

import grpc

from octavo_common.errors import OctavoError, Status

# In quotes: grpc's classes are generic in the stubs only.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour = Callable[[Any, Context], Any]
Manager = Callable[[Context], AbstractAsyncContextManager[None]]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]]
# Endless watches and introspection: neither authenticated, nor counted, nor traced.
INFRASTRUCTURE = ("/grpc.health.", "/grpc.reflection.")


def is_infrastructure(method: str) -> bool:
    """Whether a full method name belongs to health checking or reflection."""
    return method.startswith(INFRASTRUCTURE)


def behaviour(handler: Handler) -> Behaviour:
    """The function behind a handler, whatever its kind."""
    kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
    return getattr(handler, "_".join(kind))


def rebuilt(handler: Handler, new: Behaviour, *, deserializer: Callable[[bytes], Any] | None) -> Handler:
    """A handler of the same kind with another function and another request deserializer."""
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(new, request_deserializer=deserializer, response_serializer=handler.response_serializer)


def _implemented(inner: Behaviour) -> Behaviour:
    """The same, or a refusal where generated code stands for a method that the servicer does not define."""
    if not getattr(inner, "__module__", "").endswith("_pb2_grpc"):
        return inner

    async def refuse(request: Any, context: Context) -> None:
        raise OctavoError("this server does not serve the method", status=Status.UNIMPLEMENTED, code="UNIMPLEMENTED")

    return refuse


def around(handler: Handler, manager: Manager, decode: Callable[[Any], Any] | None = None) -> Handler:
    """Run each call of a handler inside `manager(context)`; requests pass through `decode` inside of it, if given.

    Generator and coroutine (`context.write`) styles stay what they are, because the server chooses its way by them.
    With `decode` the server hands over raw bytes.
    """
    inner = _implemented(behaviour(handler))
    if inspect.isasyncgenfunction(inner):

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            # aclosing: the inner generator must end with this one, not when it is collected.
            async with manager(context), aclosing(inner(decode(request) if decode else request, context)) as messages:
                async for message in messages:
                    yield message

        new: Behaviour = stream
    elif inspect.iscoroutinefunction(inner):

        async def call(request: Any, context: Context) -> Any:
            async with manager(context):
                return await inner(decode(request) if decode else request, context)

        new = call
    else:
        raise TypeError(f"{inner!r} is not async: a blocking handler would stall every stream of the process")
    return rebuilt(handler, new, deserializer=None if decode else handler.request_deserializer)
