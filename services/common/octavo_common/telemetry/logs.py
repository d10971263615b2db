"""Log lines: one JSON object a line on stderr, with the service, the trace and the job. Nothing ever goes to stdout."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog
from opentelemetry import trace

EventDict = MutableMapping[str, Any]
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# Libraries that say at info what is our business at debug.
QUIET_LOGGERS = ("httpx", "uvicorn.access", "sqlalchemy.engine", "alembic.runtime.plugins")


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that a second configure() finds and replaces it, and leaves those of others alone."""


def configure(
    *,
    service: str,
    instance: str,
    level: str = "info",
    log_format: Literal["json", "console"] = "json",
    stream: TextIO | None = None,
) -> None:
    """Send structlog's events and those of the standard library to `stream` (default stderr). Once per process."""
    target = stream or sys.stderr

    def add_origin(_logger: object, _method: str, event: EventDict) -> EventDict:
        event["service"], event["instance"] = service, instance
        return event

    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_origin,
        add_trace,
    ]
    final: list[Any]
    if log_format == "json":
        # Locals may hold prompts: they stay out of tracebacks.
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        final = [
            structlog.processors.ExceptionRenderer(tracebacks),
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        plain = structlog.dev.plain_traceback
        final = [structlog.dev.ConsoleRenderer(colors=target.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        # Modules hold lazy loggers; a cached one would not see a later configure().
        cache_logger_on_first_use=False,
    )
    handler = _Handler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [*(h for h in root.handlers if not isinstance(h, _Handler)), handler]
    root.setLevel(LEVELS[level])
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_says_more_than_cancelled)


def take_uncaught() -> None:
    """Log what a thread raised and nobody caught, and what cannot be raised (in `__del__`, in a callback from C).

    Python writes both to stderr as text of many lines, in the midst of lines of JSON. Once per process.
    """
    log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            name = args.thread.name if args.thread else ""
            log.error("process.thread_failed", thread=name, exc_info=args.exc_value)

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        log.error(
            "process.unraisable", about=args.err_msg or "Exception ignored", object=repr(args.object),
            exc_info=args.exc_value,
        )  # fmt: skip

    threading.excepthook = in_thread
    sys.unraisablehook = unraisable


def _says_more_than_cancelled(record: logging.LogRecord) -> bool:
    """False for what grpc reports as an error when a server stops while streams are open."""
    return not (record.exc_info and record.exc_info[0] is asyncio.CancelledError)


def add_trace(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Put the current span on a line."""
    span_context = trace.get_current_span().get_span_context()
    if span_context.is_valid:
        event["trace_id"] = trace.format_trace_id(span_context.trace_id)
        event["span_id"] = trace.format_span_id(span_context.span_id)
    return event
