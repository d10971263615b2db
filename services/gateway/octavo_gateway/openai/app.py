"""The gateway's HTTP API: OpenAI's generations and models, our jobs, health and metrics. Thin over GenerationApi."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from octavo_common.errors import Internal, ModelNotFound, OctavoError
from octavo_common.jobs.model import Principal
from octavo_gateway.api import GenerationApi
from octavo_gateway.openai import answers
from octavo_gateway.openai.batches import Batch, accept_all, numbered
from octavo_gateway.openai.bodies import ChatBody, CompletionBody, parse_chat, parse_completion
from octavo_gateway.openai.errors import BadRequest, error_response
from octavo_gateway.openai.listing import read_listing
from octavo_gateway.openai.logprobs import Names
from octavo_gateway.openai.naming import renamed
from octavo_gateway.openai.parts import StreamOptions
from octavo_gateway.openai.requests import ClientGone, authenticate, read_json
from octavo_gateway.openai.shapes import Shape, Telling
from octavo_gateway.openai.streaming import SILENCE_S, EventStream, collect, unless_gone
from octavo_gateway.requests import RequestLimits, ValidRequest
from octavo_gateway.validation import validate

log = structlog.get_logger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]
Parse = Callable[[Any], tuple[ChatBody | CompletionBody, tuple[str, ...]]]
MAX_BODY_BYTES = 16 * 2**20
_CLIENT_GONE = 499


class Metrics(Protocol):
    """The part of Telemetry that /metrics needs."""

    def prometheus_text(self) -> bytes:
        """All metrics as text for Prometheus."""
        ...


def make_app(
    api: GenerationApi,
    *,
    limits: RequestLimits | None = None,
    telemetry: Metrics | None = None,
    health: Callable[[], bool] | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    silence_s: float = SILENCE_S,
) -> Starlette:
    """Build the ASGI app. Starts nothing; `health` says whether the gateway is ready."""
    rim = _Rim(api, limits or RequestLimits(), max_body_bytes=max_body_bytes, silence_s=silence_s)
    routes = [
        Route("/v1/chat/completions", _guarded(rim.chat), methods=["POST"]),
        Route("/v1/completions", _guarded(rim.completions), methods=["POST"]),
        Route("/v1/models", _guarded(rim.models), methods=["GET"]),
        # Names may hold a slash, as those of a hub do.
        Route("/v1/models/{name:path}", _guarded(rim.model), methods=["GET"]),
        Route("/v1/jobs", _guarded(rim.jobs), methods=["GET"]),
        Route("/v1/jobs/{job_id}", _guarded(rim.job), methods=["GET"]),
        Route("/v1/jobs/{job_id}/cancel", _guarded(rim.cancel), methods=["POST"]),
        Route("/health", _health(health), methods=["GET"]),
    ]
    if telemetry is not None:
        routes.append(Route("/metrics", _metrics(telemetry), methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_route})


class _Rim:
    """The endpoints. Errors are raised; `_guarded` turns them into answers."""

    def __init__(self, api: GenerationApi, limits: RequestLimits, *, max_body_bytes: int, silence_s: float) -> None:
        self._api = api
        self._limits = limits
        self._max_body_bytes = max_body_bytes
        self._silence_s = silence_s

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, parse_chat)

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, parse_completion)

    async def _generate(self, request: Request, parse: Parse) -> Response:
        principal = await authenticate(request, self._api)
        body, ignored = parse(await read_json(request, self._max_body_bytes))
        try:
            batch = await self._accept(request, principal, body)
        except OctavoError as error:
            raise renamed(error, body.names) from None
        headers = {"X-Octavo-Job": batch.names}
        if ignored:
            log.info("http.parameters_ignored", job_id=batch.names, names=list(ignored))
            headers["X-Octavo-Ignored"] = _header_text(", ".join(ignored))
        try:
            shape = await self._shape(body, batch)
        except BaseException:
            batch.leave()
            raise
        if body.stream:
            options = body.stream_options or StreamOptions()
            return EventStream(batch, shape, options, names=body.names, headers=headers, silence_s=self._silence_s)
        try:
            whole = await unless_gone(request.receive, collect(batch, shape))
        except OctavoError as error:
            return error_response(renamed(error, body.names), headers)
        finally:
            batch.leave()
        return JSONResponse(whole, headers=headers)

    async def _accept(self, request: Request, principal: Principal, body: ChatBody | CompletionBody) -> Batch:
        """Make jobs of a body, all or none."""
        raw = body.raw_requests(request.headers.get("idempotency-key", ""), self._limits)
        valid: list[ValidRequest] = []
        for number, each in enumerate(raw):
            with numbered(number, len(raw)):
                valid.append(validate(each, self._limits))
        accepting = accept_all(self._api, principal, valid, traceparent=request.headers.get("traceparent"))
        return await unless_gone(request.receive, accepting)

    async def _shape(self, body: ChatBody | CompletionBody, batch: Batch) -> Shape:
        telling = Telling()
        if body.tells:
            telling = Telling(
                names=Names(await self._api.tokenizer(batch.jobs[0])),
                logprobs=body.num_logprobs is not None,
                echo=isinstance(body, CompletionBody) and body.echo,
                prompt_logprobs=body.prompt_logprobs is not None,
            )
        return Shape(batch.jobs, chat=isinstance(body, ChatBody), telling=telling)

    async def models(self, request: Request) -> Response:
        await authenticate(request, self._api)
        return JSONResponse({"object": "list", "data": [answers.model(m) for m in await self._api.models()]})

    async def model(self, request: Request) -> Response:
        await authenticate(request, self._api)
        name = request.path_params["name"]
        infos = await self._api.models()
        for info in infos:
            if info.name == name:
                return JSONResponse(answers.model(info))
        names = ", ".join(info.name for info in infos)
        raise ModelNotFound(f"there is no model {name!r}", hint=f"models that are served: {names}", param="model")

    async def jobs(self, request: Request) -> Response:
        principal = await authenticate(request, self._api)
        asked = read_listing(request.query_params)
        try:
            rows, has_more = await self._api.jobs(principal, **asked)
        except OctavoError as error:
            raise renamed(error, {"page_size": "limit", "page_token": "after"}) from None
        return JSONResponse(answers.jobs(rows, has_more=has_more))

    async def job(self, request: Request) -> Response:
        principal = await authenticate(request, self._api)
        row = await self._api.job(principal, request.path_params["job_id"])
        return JSONResponse(answers.job(row), headers={"X-Octavo-Job": str(row.id)})

    async def cancel(self, request: Request) -> Response:
        principal = await authenticate(request, self._api)
        row = await self._api.cancel(principal, request.path_params["job_id"])
        return JSONResponse(answers.job(row), headers={"X-Octavo-Job": str(row.id)})


def _header_text(text: str) -> str:
    """Text that callers wrote, made fit for a header."""
    return "".join(char if "!" <= char <= "~" or char == " " else "?" for char in text)[:1000]


def _guarded(endpoint: Endpoint) -> Endpoint:
    """The endpoint with every error in OpenAI's form; what we did not foresee is logged and not told."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except OctavoError as error:
            return error_response(error)
        except ClientGone:
            # Nobody reads it.
            return Response(status_code=_CLIENT_GONE)
        except Exception:
            log.exception("http.failed", path=request.url.path)
            return error_response(Internal("the request failed for a reason of ours"))

    return guarded


async def _no_route(request: Request, error: Exception) -> Response:
    """Paths and methods that there are not."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"{request.method} is not supported at {request.url.path}"
    else:
        message = f"there is nothing at {request.method} {request.url.path}"
    bad = BadRequest(message, code="UNKNOWN_URL", http_status=error.status_code)
    return error_response(bad, dict(error.headers or {}))


def _health(health: Callable[[], bool] | None) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        ok = health is None or health()
        return JSONResponse({"status": "ok" if ok else "not ready"}, status_code=200 if ok else 503)

    return endpoint


def _metrics(telemetry: Metrics) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return Response(telemetry.prometheus_text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return endpoint
