"""Both rims of a running platform as a client sees them, and what every refusal must look like."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import httpx
import openai

from octavo import Chunk, Client, JobState, OctavoError, RetryPolicy, TokenStream
from octavo.errors import from_rpc_error

DEMO = "smollm2-135m"
DEMO_CONTEXT = 8192
TINY = "tiny"
# A pool of 6 blocks of 4 KiB is smaller than the tiny model's context of 512 tokens.
TINY_POOL_BYTES = 6 * 4096
TINY_LIMIT = 6 * 16
# No refusal takes longer than this, on a busy machine; most take milliseconds.
QUICK_S = 15.0
UNENDED = (JobState.QUEUED, JobState.ASSIGNED, JobState.RUNNING)
# Words of an error that belong into a log.
LEAKS = re.compile(
    r"traceback|\.py\b|/\w+/\w+/|psycopg|postgres|sqlalchemy|octavo_\w+\.|<class|0x[0-9a-f]{6}", re.IGNORECASE
)
CODE = re.compile(r"[A-Z][A-Z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error as a client has it. `status` is gRPC's name or HTTP's number."""

    status: str | int
    code: str
    message: str
    hint: str
    param: str

    def check(self) -> Refusal:
        """A code, one sentence that tells nothing of our insides, on one line."""
        assert CODE.fullmatch(self.code.upper()), self
        for text in (self.message, self.hint):
            assert "\n" not in text and len(text) <= 1000 and not LEAKS.search(text), self
        assert self.message and not self.message.endswith("."), self
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Rims:
    """Addresses and keys of a running platform."""

    data_dir: Path
    grpc: str
    http: str
    key: str
    admin_key: str
    # Of another tenant.
    other_key: str

    def client(self, key: str | None = None) -> Client:
        return Client(self.grpc, api_key=self.key if key is None else key, retry=RetryPolicy(max_attempts=1))

    def web(self, key: str | None = None) -> httpx.Client:
        key = self.key if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=f"http://{self.http}", headers=headers, timeout=60, trust_env=False)

    def openai(self, key: str | None = None) -> openai.OpenAI:
        web = httpx.Client(trust_env=False, timeout=60)
        return openai.OpenAI(base_url=f"http://{self.http}/v1", api_key=key or self.key, max_retries=0, http_client=web)

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_send_message_length", 64 * 2**20)]
        with grpc.insecure_channel(self.grpc, options=options) as channel:
            yield channel

    def send_raw(self, method: str, data: bytes, *, key: str | None = None, timeout_s: float = 60) -> list[bytes]:
        """A call with any bytes for a message; raises the RpcError as it comes."""
        metadata = (("authorization", f"Bearer {self.key if key is None else key}"),)
        with self.channel() as channel:
            return list(channel.unary_stream(method)(data, metadata=metadata, timeout=timeout_s))

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        """A request with a JSON value, or with bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **kwargs.pop("headers", {})}
        with self.web(kwargs.pop("key", None)) as web:
            return web.post(path, content=content, headers=headers, **kwargs)

    def settled(self) -> None:
        """Wait until no job is left that has not ended, and all blocks are free. Fails if that does not happen."""
        with self.client(self.admin_key) as client:
            end = time.monotonic() + 60
            while True:
                jobs = client.jobs.list(states=UNENDED)
                held = [w for w in client.workers() if w.num_free_blocks != w.num_total_blocks or w.num_running]
                if not jobs and not held:
                    return
                assert time.monotonic() < end, (jobs, held)
                time.sleep(0.3)


def refused(work: Callable[[], Any]) -> Refusal:
    """The error that a gRPC or SDK call ends in."""
    begin = time.monotonic()
    try:
        result = work()
        if isinstance(result, TokenStream | Iterator):
            result = list(result)
    except OctavoError as error:
        told = error
    except grpc.RpcError as error:
        told = from_rpc_error(error)
    else:
        raise AssertionError(f"it was accepted: {str(result)[:300]}")
    assert time.monotonic() - begin < QUICK_S
    return Refusal(status=told.status, code=told.code, message=told.message, hint=told.hint, param=told.param).check()


def refused_http(answer: httpx.Response) -> Refusal:
    """The error that an HTTP answer holds."""
    assert answer.status_code >= 400, answer.text[:300]
    assert answer.elapsed.total_seconds() < QUICK_S
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["type"] in (
        "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error",
    )  # fmt: skip
    return Refusal(
        status=answer.status_code,
        code=error["code"],
        message=error["message"],
        hint=error.get("hint", ""),
        param=error["param"] or "",
    ).check()


class Bystander:
    """A long greedy stream of the demo model that somebody else reads meanwhile."""

    # Long enough that it does not end before the others on a quick machine; whoever has seen enough cancels it.
    NUM_TOKENS = 1800

    def __init__(self, rims: Rims) -> None:
        self._client = rims.client()
        self._stream = self._client.generate(
            "Once upon a time", max_tokens=self.NUM_TOKENS, temperature=0.0, ignore_eos=True, model=DEMO
        )
        self.ids: list[int] = []
        self.times: list[float] = []
        self.error: BaseException | None = None
        self._thread = Thread(target=self._read)

    def _read(self) -> None:
        try:
            chunk: Chunk
            for chunk in self._stream:
                assert chunk.first_token == len(self.ids)
                self.ids += chunk.token_ids
                self.times.append(time.monotonic())
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Bystander:
        self._thread.start()
        self.more(3)
        return self

    def more(self, num_tokens: int) -> None:
        """Wait until so many more tokens have come."""
        goal, end = len(self.ids) + num_tokens, time.monotonic() + 60
        while len(self.ids) < goal:
            assert self.error is None and self._thread.is_alive() and time.monotonic() < end, "the stream stands"
            time.sleep(0.005)

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two chunks so far."""
        return max(b - a for a, b in zip(self.times, self.times[1:], strict=False))

    def __exit__(self, *_: object) -> None:
        self._stream.cancel()
        self._thread.join(60)
        self._client.close()
        assert not self._thread.is_alive()
