"""Loads a model from a path: which reader, which decoder, which tokenizer. The only module that knows them all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from octavo_common.models.digest import files_digest
from octavo_common.text.bundle import TokenizerBundle
from octavo_worker.kernels import gpu
from octavo_worker.kernels.integer import has_vnni
from octavo_worker.models.base import CPU, CUDA, InvalidModel, LoadedModel, ModelConfig
from octavo_worker.models.checkpoint import Checkpoint
from octavo_worker.models.config import read_config
from octavo_worker.models.decoder import Decoder, num_parameters
from octavo_worker.models.gguf import read_gguf
from octavo_worker.models.gguf_checkpoint import GgufCheckpoint, quantization
from octavo_worker.models.gguf_config import gguf_config
from octavo_worker.models.gguf_tokenizer import gguf_bundle
from octavo_worker.models.gpu_precision import choose_gpu_precision
from octavo_worker.models.packed_weights import (
    KEEP_BFLOAT16,
    KEEP_W4A8,
    KEEP_W4A16,
    KEEP_W8A8,
    PackedWeights,
    read_weights,
)
from octavo_worker.models.precision import BFLOAT16, FLOAT32, PRECISIONS, W4A8, W4A16, W8A8, choose_precision
from octavo_worker.models.weights import SafetensorsCheckpoint, weight_files


def load_model(path: str | Path, *, precision: str = FLOAT32, name: str = "", device: str = CPU) -> LoadedModel:
    """Load a GGUF file, or a directory with config.json and safetensors, or with one GGUF file.

    Raises InvalidModel or UnsupportedTokenizer (errors that name the file and the tensor) when the files are not sound;
    InvalidArgument or FailedPrecondition for a precision that we, or this model, do not compute in. ``device`` is cpu,
    or cuda where `kernels.gpu` has no reasons against it.
    """
    source = find_model(Path(path))
    load = _load_gguf if source.is_file() else _load_directory
    return load(source, name, precision, device)


# What holds the weights of each precision.
_READERS: Mapping[str, Callable[[ModelConfig, Checkpoint], Decoder | PackedWeights]] = {
    FLOAT32: Decoder,
    BFLOAT16: partial(read_weights, keeping=KEEP_BFLOAT16),
    W8A8: partial(read_weights, keeping=KEEP_W8A8),
    W4A8: partial(read_weights, keeping=KEEP_W4A8),
    W4A16: partial(read_weights, keeping=KEEP_W4A16),
}


def find_model(path: Path) -> Path:
    """The GGUF file or the Hugging Face directory that a path stands for; raises InvalidModel."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise InvalidModel(f"there is no model at {path}", hint="give a GGUF file or a model's directory")
    if (path / "config.json").is_file():
        return path
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    what = "several GGUF files" if found else "neither config.json nor a GGUF file"
    raise InvalidModel(f"{path} has {what}", hint="give a GGUF file, or a directory with config.json and safetensors")


def _load_gguf(path: Path, name: str, precision: str, device: str) -> LoadedModel:
    file = read_gguf(path)
    config = gguf_config(file)
    kind = quantization(file)
    precision = _choose(precision, config, kind, device)
    bundle = gguf_bundle(file)
    _check_vocabulary(bundle, config, str(path))
    reopen = partial(GgufCheckpoint, file, config)
    with reopen() as checkpoint:
        model, config = read_model(config, checkpoint, precision=precision, device=device)
    return LoadedModel(
        reopen=reopen,
        model=model,
        precision=precision,
        device=device,
        config=config,
        bundle=bundle,
        digest=files_digest([path]),
        name=name or str(file.metadata.get("general.name") or path.stem),
        num_parameters=num_parameters(config),
        weight_bytes=model.num_bytes,
        source="gguf",
        quantization=kind,
    )


def _load_directory(directory: Path, name: str, precision: str, device: str) -> LoadedModel:
    config = read_config(directory)
    precision = _choose(precision, config, "", device)
    bundle = TokenizerBundle.from_directory(directory)
    _check_vocabulary(bundle, config, str(directory))
    reopen = partial(SafetensorsCheckpoint, directory)
    with reopen() as checkpoint:
        model, config = read_model(config, checkpoint, precision=precision, device=device)
    return LoadedModel(
        reopen=reopen,
        model=model,
        precision=precision,
        device=device,
        config=config,
        bundle=bundle,
        # The configuration too: the same weights with another base of their angles are another model.
        digest=files_digest([directory / "config.json", *weight_files(directory)]),
        name=name or directory.resolve().name,
        num_parameters=num_parameters(config),
        weight_bytes=model.num_bytes,
        source="safetensors",
    )


def _choose(asked: str, config: ModelConfig, kind: str, device: str) -> str:
    if device == CUDA:
        return choose_gpu_precision(asked, others=PRECISIONS)
    return choose_precision(asked, config, quantization=kind, has_vnni=has_vnni())


def read_model(config: ModelConfig, checkpoint: Checkpoint, *, precision: str, device: str) -> tuple[Any, ModelConfig]:
    """The model, and its configuration with the dtype that it computes in."""
    if device == CUDA:
        # Needs Triton.
        from octavo_worker.models.triton_decoder import TritonDecoder

        config = replace(config, dtype=precision)
        return TritonDecoder(config, checkpoint, gpu.torch_device()), config
    return _READERS[precision](config, checkpoint), config


def _check_vocabulary(bundle: TokenizerBundle, config: ModelConfig, where: str) -> None:
    """A token without a row in the embedding would take the engine down with the first prompt that has it."""
    try:
        value: Any = json.loads(bundle.tokenizer_json)
        vocab = value["model"]["vocab"]
        ids = list(vocab.values()) if isinstance(vocab, dict) else range(len(vocab))
        highest = max([*ids, *(token["id"] for token in value.get("added_tokens") or ())], default=-1)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidModel(f"{where}: the tokenizer cannot be read: {error!r}") from error
    if highest >= config.vocab_size:
        raise InvalidModel(
            f"{where}: the tokenizer has ids up to {highest}, and the embedding {config.vocab_size} rows"
        )
