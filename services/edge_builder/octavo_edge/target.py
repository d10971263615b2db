"""What a tool-chain says of itself and does: the protocol that targets implement. Knows no tool-chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from octavo_common.errors import InvalidArgument
from octavo_edge.artifacts import ExportedModel
from octavo_edge.recipe import Granularity, QType


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProfile:
    """What a target can take."""

    name: str
    # Of the tool-chain; another one compiles anew. Empty if it is not installed.
    version: str = ""
    # ONNX operators of the default domain that it runs; None if it runs them all.
    ops: frozenset[str] | None = None
    activations: frozenset[QType] = frozenset(QType)
    weights: frozenset[QType] = frozenset(QType)
    granularities: frozenset[Granularity] = frozenset(Granularity)
    # The most that a compiled model may take on the device; None if only the machine's memory limits it.
    memory_bytes: int | None = None
    # Whether the files that it makes also run on the machine that makes them.
    runs_here: bool = True
    # Whether the device's own runner drives its bundles on the machine that builds them.
    replays: bool = False
    # Whether what it makes takes keys and values of tokens that were never fed: the cache is an input.
    takes_prefix: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """One reason why a target cannot take a graph: the node's name, its operator and what is wrong with it."""

    node: str
    op: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node} ({self.op}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One node: its name, operator with domain ("" is ONNX's own), and the dtypes that it reads and writes."""

    name: str
    op: str
    domain: str = ""
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary:
    """What a target needs to know of a graph to say whether it takes it."""

    opset: int
    nodes: tuple[GraphNode, ...]
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class CompiledAndRun:
    """The binary was made and has run here on this graph's inputs."""

    def __str__(self) -> str:
        return "compiled+run"


@dataclass(frozen=True, slots=True)
class Compiled:
    """The binary was made; only the device can run it."""

    def __str__(self) -> str:
        return "compiled (run on device)"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No binary was made, and why."""

    reason: str

    def __str__(self) -> str:
        return f"unavailable: {self.reason}"


Outcome = CompiledAndRun | Compiled | Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """What a user may ask of a tool-chain beyond its defaults; a target refuses the keys that it does not know."""

    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """How far it came, with measurements whose keys end in their unit; ``details`` is JSON for the report."""

    outcome: Outcome
    metrics: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


class Target(Protocol):
    """One tool-chain."""

    @property
    def profile(self) -> TargetProfile:
        """What it can take. Cheap: nothing of the tool-chain is imported."""
        ...

    def missing(self) -> list[str]:
        """Why it cannot work on this machine (package absent, version, licence); empty if it can."""
        ...

    def check(self, graph: GraphSummary) -> Sequence[Unsupported]:
        """All reasons why it cannot take the graph; empty if it can."""
        ...

    def check_options(self, options: CompileOptions) -> None:
        """Say before anything is built that an option is not known or has a value that is none.

        Raises:
            InvalidArgument: Names the option and what it may be.
        """
        ...

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        """Write what a device loads, and ``blob.json``, into the empty directory ``out``. Unavailable leaves it empty.

        ``model`` is only read. A library that may crash, or that needs an environment of its own, runs in a process of
        its own.

        Raises:
            OctavoError: The tool-chain failed; the message has its words.
        """
        ...


def best_outcome(target: Target) -> Outcome:
    """How far a target can come on this machine."""
    if missing := target.missing():
        return Unavailable("; ".join(missing))
    return CompiledAndRun() if target.profile.runs_here else Compiled()


def reasons_against(profile: TargetProfile, graph: GraphSummary) -> list[Unsupported]:
    """What a profile alone says against a graph: private operators, operators that it lacks, too many bytes."""
    against: list[Unsupported] = []
    for node in graph.nodes:
        if node.domain not in ("", "ai.onnx"):
            against.append(Unsupported(node=node.name, op=node.op, reason=f"operator of the domain {node.domain!r}"))
        elif profile.ops is not None and node.op not in profile.ops:
            against.append(Unsupported(node=node.name, op=node.op, reason=f"{profile.name} has no such operator"))
    if profile.memory_bytes is not None and graph.weight_bytes > profile.memory_bytes:
        reason = f"{graph.weight_bytes} bytes of weights; the device holds {profile.memory_bytes}"
        against.append(Unsupported(node="", op="", reason=reason))
    return against


def options_by_target(targets: Sequence[str], given: Sequence[str]) -> dict[str, CompileOptions]:
    """Options written ``key=value``, or ``target.key=value`` where there are several targets, by target.

    Raises:
        InvalidArgument: An option without a value, or that does not say which target it is for.
    """
    values: dict[str, dict[str, str]] = {}
    for entry in given:
        key, equals, value = entry.partition("=")
        target, dot, rest = key.partition(".")
        if dot and target in targets:
            key = rest
        elif len(targets) == 1:
            target = targets[0]
        else:
            raise InvalidArgument(
                f"--target-option {entry} does not say for which target", hint=f"{targets[0]}.{entry}", param="options"
            )
        if not equals or not key:
            raise InvalidArgument(f"--target-option {entry} is no key=value", hint="soc=69", param="options")
        values.setdefault(target, {})[key] = value
    return {target: CompileOptions(values=options) for target, options in values.items()}
