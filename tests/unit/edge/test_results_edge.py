"""What targets answer alike: versions of packages, and a failure that leaves nothing in the blob's directory."""

from __future__ import annotations

import numpy

from octavo_edge.target import Unavailable
from octavo_edge.toolchain.results import installed_version, unavailable


def test_versions_are_those_of_the_packages():
    assert installed_version("numpy") == numpy.__version__
    assert installed_version("there-is-no-such-package") == ""


def test_what_is_unavailable_leaves_nothing(tmp_path):
    (tmp_path / "head.mlpackage" / "Data").mkdir(parents=True)
    (tmp_path / "head.mlpackage" / "Data" / "weight.bin").write_bytes(b"x")
    (tmp_path / "head.engine").write_bytes(b"x")
    assert unavailable(tmp_path, "it failed").outcome == Unavailable("it failed")
    assert list(tmp_path.iterdir()) == []
