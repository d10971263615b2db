"""The worker's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from octavo_common.settings import CommonSettings, SettingsError


class WorkerSettings(CommonSettings):
    """OCTAVO_WORKER_* and what all processes read."""

    model_config = SettingsConfigDict(
        env_prefix="OCTAVO_WORKER_", frozen=True, extra="ignore", populate_by_name=True, protected_namespaces=()
    )

    # Path of a model directory or file, or the name of a model in the data directory.
    model: str = ""
    # Name under which it is asked for; empty takes the model's own.
    model_name: str = ""
    # 0 takes any free port; the process announces it.
    port: int = Field(default=0, ge=0, le=65535)
    # Name under which others reach this process; empty: what `host` says.
    advertise_host: str = ""
    # 0 takes all cores that the process may use.
    num_threads: int = Field(default=0, ge=0)
    # Where the model is computed: auto takes cuda where torch finds a GPU that the kernels run on. Of several GPUs the
    # first is taken that CUDA_VISIBLE_DEVICES leaves.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Memory for keys and values. 0 takes 1 GiB of a CPU's, touched only as it is used; of a GPU's 85 % of what the
    # weights leave.
    kv_bytes: int = Field(default=0, ge=0)
    # Most rows of a step.
    max_sequences: int = Field(default=64, ge=1)
    # Most jobs that it takes at once, those that wait in the engine among them.
    max_jobs: int = Field(default=128, ge=1)
    # Most tokens of a step; 0 takes 128 for each thread, at most 512: about a quarter of a second. On a GPU 2,048.
    max_batch_tokens: int = Field(default=0, ge=0)
    # Prompt tokens of a step while anything decodes; requests that lost another worker are not held to it. 0 takes 32,
    # on a GPU 512.
    max_prompt_tokens_beside_decode: int = Field(default=0, ge=0)
    # What becomes of the keys and values of a sequence that makes room: computed again, or kept in host memory.
    preemption: Literal["recompute", "swap"] = "recompute"
    # Host memory for them; touched only as it is used, but beside a GPU pinned, all at once. What does not fit is
    # recomputed.
    swap_bytes: int = Field(default=1 << 30, ge=0)
    # Order of waiting requests: strictly by arrival, or by priority or deadline and evenly between fair keys.
    queue: Literal["fcfs", "priority", "deadline"] = "priority"
    # v1 mixes chunks of prompts with decoding; v0 takes turns between whole prompts and decoding.
    engine_style: Literal["v1", "v0"] = "v1"
    attention_backend: str = "auto"
    # On a GPU: record decode steps as graphs and replay them. Only to find out whether a fault lies there.
    records_decode: bool = True
    # auto, float32, bfloat16, w8a8, w4a8 or w4a16; on a GPU bfloat16, float16 or float32. auto goes by rules, see
    # docs/tokens.md.
    precision: str = "auto"
    # Notifications are only hints: so often the table is read without one. A worker that holds nothing reads it after
    # its heartbeats, each third of lease_s.
    poll_s: float = Field(default=1.0, gt=0)
    # An engine that has work and makes no step for so long is given up, and the process with it.
    stuck_s: float = Field(default=30.0, gt=0)
    drain_s: float = Field(default=5.0, ge=0)

    def require_model_path(self) -> Path:
        """The model's file or directory: a path, or a name in the data directory. Raises SettingsError."""
        if not self.model:
            raise SettingsError(
                "no model is set", hint="set OCTAVO_WORKER_MODEL to a path", param="OCTAVO_WORKER_MODEL"
            )
        path, named = Path(self.model), self.data_dir / "models" / self.model
        found = path if path.exists() else named
        if not found.exists():
            raise SettingsError(
                f"there is no model at {path}, nor {self.model!r} in the data directory",
                hint=f"`octavo models pull {self.model}` fetches a model that it knows",
                param="OCTAVO_WORKER_MODEL",
            )
        weights = sorted(found.glob("*.gguf")) if found.is_dir() and not (found / "config.json").exists() else []
        return weights[0] if len(weights) == 1 else found
