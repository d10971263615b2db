"""Writes a GGUF file with all matrices in Q8_0, from the float32 values of another one. Knows no engine.

The quantiser is the `gguf` package's, whose bits are llama.cpp's own; metadata and float32 vectors stay as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType, GGUFValueType, LlamaFileType
from gguf.quants import dequantize, quantize

_OWN_FIELDS = ("GGUF.", "general.architecture", "general.file_type")


def write_q8_0(source: Path, target: Path) -> None:
    """Write ``target`` unless it is there."""
    if target.exists():
        return
    reader = GGUFReader(source)
    part = target.with_suffix(".part")
    writer = GGUFWriter(part, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(_OWN_FIELDS):
            kind, *item = field.types
            writer.add_key_value(name, field.contents(), kind, item[-1] if kind is GGUFValueType.ARRAY else None)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    for tensor in reader.tensors:
        data, kind = _stored(tensor)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)


def _stored(tensor: Any) -> tuple[np.ndarray, GGMLQuantizationType]:
    """Vectors and what is in Q8_0 already as they are; other matrices in Q8_0."""
    kind = tensor.tensor_type
    if len(tensor.shape) == 1 or kind is GGMLQuantizationType.Q8_0:
        return np.asarray(tensor.data), kind
    q8_0 = GGMLQuantizationType.Q8_0
    return quantize(dequantize(np.asarray(tensor.data), kind), q8_0), q8_0
