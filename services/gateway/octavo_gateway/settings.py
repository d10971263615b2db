"""Settings of the gateway, from OCTAVO_GATEWAY_* and the common variables."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from octavo_common.settings import CommonSettings


class GatewaySettings(CommonSettings):
    """What a gateway reads from its environment."""

    model_config = SettingsConfigDict(env_prefix="OCTAVO_GATEWAY_")

    # 0 takes any free port; the process announces it.
    grpc_port: int = Field(50051, ge=0, le=65535)
    http_port: int = Field(8080, ge=0, le=65535)
    # Largest request and answer of one message.
    max_message_bytes: int = Field(16 * 2**20, ge=64 * 1024)
    # How long streams may go on after a signal, before they are handed over.
    drain_s: float = Field(10.0, ge=0)
    # How a worker's or client's address names this host; empty: the bound one.
    advertise_host: str = ""
    # Longest prompt in characters, before any tokenising.
    max_prompt_chars: int = Field(1_000_000, ge=1)
    # Streamed jobs go at once to the worker that is alone with their model, when it has room and nobody waits for it.
    direct: bool = True
    # How long a model is remembered whose last worker is gone.
    remember_models_s: float = Field(600.0, ge=0)
