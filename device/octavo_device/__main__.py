"""``python -m octavo_device run DIR``, or ``verify DIR``: says in one line what this device lacks for it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = ("numpy", "onnxruntime", "tokenizers")


def main() -> int:
    """Run what the command line says; returns the exit code."""
    if absent := [name for name in _NEEDED if find_spec(name) is None]:
        sys.stderr.write(f"octavo-device: not installed: {', '.join(absent)} - pip install {' '.join(absent)}\n")
        return 2
    from octavo_device.command import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
