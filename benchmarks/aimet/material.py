"""What both quantisers get: float graphs made by the builder's own first stages, and batches on disk.

A batch is a folder of .npy files, one for every input of the graph that is not all zeros.
"""

from __future__ import annotations

import pydoc_data.topics
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from octavo_common.clock import SystemClock
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.feeds import Decoding
from octavo_device.spec import GraphSpec, graph_file, read_spec
from octavo_edge.artifacts import source_model
from octavo_edge.fingerprint import builder_fingerprint
from octavo_edge.graph.runtime import OrtGraph, OrtModel
from octavo_edge.models.source import load_source
from octavo_edge.pipeline import Surroundings, pipeline
from octavo_edge.quant.batches import BatchStore, StoredBatch, texts_behind_nothing
from octavo_edge.quant.corpus import Purpose, documents
from octavo_edge.stage import Cancellation
from octavo_edge.stages.adapt import Adapt
from octavo_edge.stages.optimise import Optimise
from octavo_edge.store import ArtifactStore
from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """``[tokens, vocabulary]`` of each window, on disk: together they are gigabytes."""

    files: tuple[Path, ...]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (np.load(file) for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """One float graph, what it is calibrated with and what it is judged by."""

    folder: Path
    spec: GraphSpec
    calibration: Sequence[StoredBatch]
    folders: tuple[Path, ...]  # of the calibration's batches
    judging: BatchStore
    texts: tuple[tuple[int, ...], ...]  # those of `judging`

    @property
    def graph(self) -> Path:
        """The graph for most new tokens."""
        return self.folder / graph_file(self.spec.ars[0])

    @property
    def targets(self) -> NDArray[Any]:
        """What follows each token of a text but its last, [windows, tokens - 1]."""
        return np.array([text[1:] for text in self.texts])

    def beginning_with(self, first: int, num: int) -> Material:
        """The same with ``num`` windows to calibrate with, from the one of that number on and round."""
        order = [(first + index) % len(self.calibration) for index in range(num)]
        return replace(
            self,
            calibration=[self.calibration[index] for index in order],
            folders=tuple(self.folders[index] for index in order),
        )

    def logits(self, graph: Path, out: Path) -> Logits:
        """What a graph with this one's inputs says of the texts, by ONNX Runtime, into the new folder ``out``."""
        session = OrtGraph(graph)
        out.mkdir(parents=True)
        files = tuple(out / f"{index}.npy" for index in range(len(self.judging)))
        for file, batch in zip(files, self.judging, strict=True):
            (logits,) = session.run(dict(batch), ["logits"])["logits"]
            np.save(file, logits)
        return Logits(files=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How long a graph's texts are, and how many."""

    context_length: int
    ar: int
    num_calibration: int
    num_judging: int


def material(model: Path, work: Path, size: Size, *, store: Path, graph: Path | None = None) -> Material:
    """The graph of a checkpoint, made in ``store`` unless it is there, and its batches in ``work``.

    ``graph`` is a folder of float graphs that were made before.
    """
    folder = _float_graph(model, store, size) if graph is None else graph
    spec = read_spec(folder)
    tokenizer = Tokenizer(TokenizerBundle.from_directory(folder))

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    # Every text gives two windows, as in a build: one behind nothing and one behind the first's keys and values.
    num_texts = -(-size.num_calibration // 2)
    stretches = documents(Purpose.CALIBRATION, (), encode, length=2 * size.ar, num=num_texts)
    texts = documents(Purpose.EVALUATION, (), encode, length=size.ar, num=size.num_judging)
    tokenizer.close()
    shutil.rmtree(work, ignore_errors=True)
    calibration = BatchStore(work / "calibration", spec, size.ar)
    run = OrtModel(folder)
    for stretch in stretches:
        for call in Decoding(spec, run).calls(stretch, ars=[size.ar]):
            calibration.add(call.inputs)
    judging = texts_behind_nothing(work / "judging", spec, texts)
    return Material(
        folder=folder,
        spec=spec,
        calibration=calibration,
        folders=tuple(work / "calibration" / str(index) for index in range(len(calibration))),
        judging=judging,
        texts=tuple(tuple(text) for text in texts),
    )


def first_layers(model: Path, num_layers: int, out: Path) -> Path:
    """A checkpoint of a model's first layers with its norm and head, unless it is there."""
    if (out / "config.json").exists():
        return out
    loaded = load_source(model)
    whole: Any = loaded.model
    whole.model.layers = whole.model.layers[:num_layers]
    config = whole.config
    config.num_hidden_layers = num_layers
    # Of a GGUF file: its weights are floats by now, and transformers writes no others.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    cut = type(whole)(config)
    cut.load_state_dict(whole.state_dict())
    out.mkdir(parents=True, exist_ok=True)
    # The tokenizer first: it writes a config.json of its own.
    loaded.tokenizer.to_directory(out, model_type=config.model_type)
    cut.save_pretrained(out)
    return out


def random_model(out: Path) -> Path:
    """A random Llama of two layers with a tokenizer trained on the builder's calibration text, unless it is there."""
    if (out / "config.json").exists():
        return out
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=128,
        initializer_range=0.06,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=0,
    )
    tokenizer = HFTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_topics(), trainer)
    out.mkdir(parents=True, exist_ok=True)
    LlamaForCausalLM(config).save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    return out


def _topics() -> Sequence[str]:
    return [text for _, text in sorted(pydoc_data.topics.topics.items())]


def _float_graph(model: Path, store: Path, size: Size) -> Path:
    """The folder of the optimised graph."""
    stages = pipeline(Adapt(context_length=size.context_length)).then(
        Optimise(context_length=size.context_length, ars=(size.ar,))
    )
    clock = SystemClock()
    with ExitStack() as held:
        around = Surroundings(
            store=ArtifactStore(store, clock),
            target=OnnxRuntimeTarget(),
            clock=clock,
            cancellation=Cancellation(),
            on_progress=lambda _: None,
            on_stage=lambda run: print(
                f"  {run.report.stage}: {'kept' if run.cached else f'{run.report.seconds:.0f} s'}", flush=True
            ),
            held=held,
            builder=builder_fingerprint(),
        )
        return stages.run(source_model(model), around).path
