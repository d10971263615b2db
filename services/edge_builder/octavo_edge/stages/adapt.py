"""Turns a checkpoint into the decoder that devices get, and checks it against transformers. Knows no ONNX."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch
import transformers

from octavo_edge.artifacts import AdaptedModel, SourceModel
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.models.adaptation import adapt_model
from octavo_edge.models.config import AttentionForm, check_context
from octavo_edge.models.decoder import load_decoder, save_decoder
from octavo_edge.models.families import window_of
from octavo_edge.models.running import Probe, TorchModel, probe_tokens
from octavo_edge.models.source import LoadedSource, check_source, load_source
from octavo_edge.stage import Gate, StageContext, StageOutcome, TensorLoss

_NUM_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapt:
    """A checkpoint as 1x1 convolutions with the cache outside.

    `context_length` is what will be built; a longer one than the model's is refused before weights are read.
    """

    context_length: int
    attention: AttentionForm = "mha"
    name: str = "adapt"
    output: type[AdaptedModel] = AdaptedModel
    gates: tuple[Gate, ...] = (Gate(metric="worst_sqnr_db", at_least=100.0),)

    @property
    def cache_key(self) -> str:
        """The form of attention. The context decides nothing here."""
        return self.attention

    def run(self, source: SourceModel, ctx: StageContext) -> StageOutcome:
        """Load, adapt, write, and compare what was written with transformers on real text.

        Raises:
            UnsupportedModel: The architecture, or something in it.
            CorruptCheckpoint: Files are damaged or incomplete.
            UnsupportedTokenizer: There is no usable tokenizer.
            InvalidArgument: The context is longer than the model's.
        """
        ctx.step(0, _NUM_STEPS, "reading the checkpoint")
        check_context(self.context_length, limit=check_source(source.path))
        loaded = load_source(source.path)
        limit, _ = window_of(loaded.model.config)
        check_context(self.context_length, limit=limit)
        probe = Probe.within(limit)
        tokens = probe_tokens(loaded.tokenizer, probe.num_tokens, vocab_size=loaded.model.config.vocab_size)

        ctx.step(1, _NUM_STEPS, "running it in transformers")
        with torch.inference_mode():
            expected = loaded.model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()

        ctx.step(2, _NUM_STEPS, "writing the adapted model")
        num_bytes = self._write(loaded, ctx)
        # The original is given back before the copy is read: one set of weights at a time.
        del loaded
        gc.collect()

        ctx.step(3, _NUM_STEPS, "comparing with transformers")
        decoder = load_decoder(ctx.out)
        spec = decoder.config.graph_spec(context_length=probe.num_tokens, ars=probe.ars)
        got = probe.logits(spec, TorchModel(decoder, spec), tokens)
        parts = probe.parts()
        losses = {name: sqnr_db(expected[parts[name]], logits) for name, logits in got.items()}
        ctx.step(4, _NUM_STEPS)
        worst = sorted(losses.items(), key=lambda item: item[1])
        return StageOutcome(
            metrics={
                "worst_sqnr_db": worst[0][1],
                **{f"{name}_sqnr_db": value for name, value in losses.items()},
                "weights_size_bytes": num_bytes,
            },
            versions={"torch": torch.__version__, "transformers": transformers.__version__},
            worst=tuple(TensorLoss(tensor=f"logits of {name}", sqnr_db=value) for name, value in worst),
            details={
                "family": decoder.config.family,
                "attention": decoder.config.attention,
                "num_layers": decoder.config.num_layers,
                "rope": decoder.config.rope.kind,
                "tied_embeddings": decoder.config.tied_embeddings,
            },
        )

    def _write(self, loaded: LoadedSource, ctx: StageContext) -> int:
        decoder = adapt_model(loaded.model, attention=self.attention)
        # The tokenizer first: it writes a config.json of its own, which names the family to other tools.
        loaded.tokenizer.to_directory(ctx.out, model_type=decoder.config.family)
        return save_decoder(ctx.out, decoder)
