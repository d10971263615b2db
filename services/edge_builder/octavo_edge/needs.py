"""Says which packages the builder lacks, before one of its modules fails to import them. Imports none of them."""

from __future__ import annotations

from importlib.util import find_spec

from octavo_common.errors import FailedPrecondition

# Every build needs these; what single targets need is theirs to say.
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "transformers": "transformers",
    "safetensors": "safetensors",
    "gguf": "gguf",
    "onnx": "onnx",
    "onnxscript": "onnxscript",
    "onnxruntime": "onnxruntime",
    "yaml": "PyYAML",
}


class NotInstalled(FailedPrecondition):
    """Packages are missing that every build needs."""

    code = "EDGE_NOT_INSTALLED"


def require_packages() -> None:
    """Raises NotInstalled, with the names of all that is missing."""
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        raise NotInstalled(
            f"the edge builder needs packages that are not installed: {', '.join(missing)}",
            hint="pip install 'octavo[edge]'",
        )
