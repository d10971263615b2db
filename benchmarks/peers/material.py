"""What the systems are fed: the checkpoint in the forms that they read, and prompts from real text."""

from __future__ import annotations

import math
import pydoc_data.topics
import shutil
from pathlib import Path
from typing import Any

from benchmarks.peers.costs import Costs

from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.models.gguf import read_gguf
from octavo_worker.models.gguf_tokenizer import gguf_bundle


def directory_of(gguf: Path, folder: Path) -> Path:
    """The same weights in bfloat16 in Hugging Face's form, written unless they are there."""
    if folder.exists():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    read: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # transformers writes no model that it read from a GGUF file, but one that is made of its weights.
    del read.config.quantization_config
    model: Any = type(read)(read.config)
    model.load_state_dict(read.state_dict())
    model.to(torch.bfloat16).save_pretrained(part)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(part)
    part.rename(folder)
    return folder


def measured_costs(gguf: Path) -> Costs:
    """What the checkpoint's matrices weigh."""
    matrices = {name: math.prod(t.shape) for name, t in read_gguf(gguf).tensors.items() if len(t.shape) > 1}
    # A tied head is the embedding, which is read whole for it.
    head = matrices.get("output.weight", matrices["token_embd.weight"])
    layers = sum(size for name, size in matrices.items() if name.startswith("blk."))
    return Costs(gguf_bytes=gguf.stat().st_size, num_weights=layers + head, num_head_weights=head)


def real_prompts(gguf: Path, count: int, num_tokens: int) -> list[tuple[list[int], str]]:
    """Stretches of the language reference that comes with Python, as token ids and as text; no two begin alike."""
    tokenizer = Tokenizer(gguf_bundle(read_gguf(gguf)))
    text = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    ids = tokenizer.encode(text[: 6 * count * num_tokens + 6 * num_tokens], add_special=False)
    stretches = [ids[i * num_tokens : (i + 1) * num_tokens] for i in range(count)]
    assert len(stretches[-1]) == num_tokens, "the text is too short"
    return [(stretch, tokenizer.decode(stretch)) for stretch in stretches]
