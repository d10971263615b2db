"""A GGUF file as llama.cpp runs it: our integers in its blocks of 32, its names, the tokenizer and the chat template.

Knows the families that llama.cpp has. The graphs do not matter here: llama.cpp has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from octavo_common.text.bundle import TokenizerBundle, UnsupportedTokenizer
from octavo_edge.artifacts import ExportedModel
from octavo_edge.graph.blob import write_blob
from octavo_edge.graph.manifest import read_manifest
from octavo_edge.models.config import read_config
from octavo_edge.quant.reading import Parameter, read_parameters
from octavo_edge.recipe import QType
from octavo_edge.target import (
    Compiled,
    CompileOptions,
    CompileResult,
    GraphSummary,
    TargetProfile,
    Unavailable,
    Unsupported,
    reasons_against,
)
from octavo_edge.toolchain.options import check_options
from octavo_edge.toolchain.results import installed_version, unavailable

_PACKAGE = "gguf"
_FILE = "model.gguf"
# Of any tensor. Blocks of 32 in 8 bits keep 127^2 / 8 = 33 dB at the very least; below that a scale left float16.
_LEAST_DB = 30.0


class GgufTarget:
    """llama.cpp's format, written by its `gguf` package."""

    @property
    def profile(self) -> TargetProfile:
        """Weights of 4 and 8 bits; activations and the cache are llama.cpp's own business."""
        return TargetProfile(
            name="gguf",
            version=installed_version(_PACKAGE),
            weights=frozenset({QType.INT4, QType.INT8, QType.FLOAT16, QType.FLOAT32}),
            runs_here=False,
            takes_prefix=False,
        )

    def missing(self) -> list[str]:
        """Why it cannot write here."""
        return [] if find_spec(_PACKAGE) else ["the package gguf is not installed: octavo[edge]"]

    def check(self, graph: GraphSummary) -> Sequence[Unsupported]:
        """Operators that are not ONNX's own."""
        return reasons_against(self.profile, graph)

    def check_options(self, options: CompileOptions) -> None:
        """`table`: q8_0 (the default) or f16, for the embedding. Raises InvalidArgument for all else."""
        check_options(options, "gguf", {"table": ("q8_0", "f16")})

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        """Write `model.gguf`, read it back and compare every tensor."""
        self.check_options(options)
        from octavo_edge.toolchain.gguf_file import GgufModel, reasons_against_file
        from octavo_edge.toolchain.gguf_tokenizer import tokenizer_metadata

        config = read_config(model.path)
        why = reasons_against_file(config)
        if why:
            return CompileResult(outcome=Unavailable("; ".join(why)))
        bundle = TokenizerBundle.from_directory(model.path)
        try:
            tokenizer = tokenizer_metadata(bundle, vocab_size=config.vocab_size, where=model.path)
        except UnsupportedTokenizer as error:
            return CompileResult(outcome=Unavailable(error.message))
        parameters: dict[str, Parameter] = {}
        for part in read_manifest(model.path).parts:
            parameters |= read_parameters(model.path / part.graphs[0].file)
        made = GgufModel(config, parameters, table=options.values.get("table", "q8_0"))
        made.write(out / _FILE, tokenizer)
        losses = made.read_back(out / _FILE)
        worst = min(losses, key=lambda name: losses[name])
        if losses[worst] < _LEAST_DB:
            why = f"the file does not hold what the integers stand for: {worst} {losses[worst]:.1f} dB"
            return unavailable(out, why)
        size = write_blob(out, runtime="llama.cpp", graphs={}, model=_FILE)
        warnings = ["activations and the cache are llama.cpp's: their encodings have no effect"]
        if made.rounded:
            warnings.append(f"rounded anew, since llama.cpp has no such integers: {', '.join(sorted(made.rounded))}")
        if config.window is not None:
            warnings.append(f"llama.cpp has no window for this family: beyond {config.window} tokens it sees more")
        return CompileResult(
            outcome=Compiled(),
            metrics={
                "size_bytes": float(size),
                "num_tensors": float(len(losses)),
                "num_rounded_tensors": float(len(made.rounded)),
                "worst_weight_sqnr_db": losses[worst],
            },
            warnings=tuple(warnings),
            versions={_PACKAGE: installed_version(_PACKAGE)},
        )
