"""The tokenizer of a GGUF file; how it is built is shared with the edge builder. Knows nothing of weights."""

from __future__ import annotations

from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.gguf import DamagedTokenizer, bundle_from_metadata
from octavo_worker.models.base import InvalidModel
from octavo_worker.models.gguf import GgufFile


def gguf_bundle(file: GgufFile) -> TokenizerBundle:
    """The tokenizer, chat template and special tokens of a GGUF file.

    Raises UnsupportedTokenizer for a kind that we cannot build exactly, InvalidModel for damaged metadata.
    """
    try:
        return bundle_from_metadata(file.metadata, where=file.path)
    except DamagedTokenizer as error:
        raise InvalidModel(error.message) from error
