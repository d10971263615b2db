"""What other people are told has no paths of this machine, and all else as it was."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from octavo_edge.public import all_without_paths, without_paths

HERE = Path(__file__).resolve()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"cannot open {HERE}: no such file", f"cannot open .../{HERE.name}: no such file"),
        (f"[Errno 2] No such file or directory: '{HERE}'", f"[Errno 2] No such file or directory: '.../{HERE.name}'"),
        (
            f"{sys.executable} -I/usr/include -o=/usr/lib/x.so",
            f".../{Path(sys.executable).name} -I.../include -o=.../x.so",
        ),
        (f"see file://{HERE}.", f"see .../{HERE.name}."),
        ('File "/usr/lib/python3/a b.py", line 3', 'File ".../a b.py", line 3'),
        ("no space left on the device of /tmp/edge: 0 MB free", "no space left on the device of .../edge: 0 MB free"),
        ("(/usr/share/x,/etc)", "(.../x,.../etc)"),
    ],
)
def test_a_path_is_cut_to_its_last_name(text: str, told: str) -> None:
    assert without_paths(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "node /model/layers.0/mlp/act_fn/Mul: Gelu is not in opset 3",
        "12 tokens/s, and/or 3/4 of 1/2; usr/lib",
        "https://example.org/usr/lib/page and http://home/x",
        "a / b, // c",
        "",
    ],
)
def test_names_of_tensors_fractions_and_addresses_stay(text: str) -> None:
    assert without_paths(text) == text


def test_what_the_reader_has_named_stays_and_no_more_of_what_is_below_it() -> None:
    model = "/home/someone/tiny"
    told = f"{model}/config.json is missing in {model}; /home/someone/other is not read"
    assert without_paths(told, keep=model) == told.replace("/home/someone/other", ".../other")
    assert without_paths(told, keep=f"{model}/") == without_paths(told, keep=model)
    beside = "/home/some/tiny-models/a is not in /home/some/tiny"
    assert without_paths(beside, places=(Path("/home/some/tiny"),), keep="/home/some/tiny-models/a") == (
        "/home/some/tiny-models/a is not in .../tiny"
    )
    # Naming the root tells nothing of what is in its folders.
    assert without_paths("/home/someone/tiny", keep="/") == ".../tiny"


def test_a_place_may_have_spaces_in_its_name() -> None:
    place = Path(tempfile.gettempdir()) / "my data"
    assert without_paths(f"the disk of {place}/edge is full", places=(place,)) == "the disk of .../edge is full"


def test_documents_are_told_so_with_all_that_is_in_them() -> None:
    document = {
        "outcome": f"failed: {HERE}",
        "rows": [{"x": (f"{HERE}", 1.5, None), "tensor": "/usr/mlp/Mul"}],
        "/usr/key": True,
    }
    assert all_without_paths(document) == {
        "outcome": f"failed: .../{HERE.name}",
        "rows": [{"x": [f".../{HERE.name}", 1.5, None], "tensor": "/usr/mlp/Mul"}],
        "/usr/key": True,
    }
