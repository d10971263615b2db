"""How a service ends that cannot start."""

from __future__ import annotations

import pytest

from octavo_common.errors import Internal, InvalidArgument, OctavoError, Unavailable
from octavo_common.exits import FAILED, MISCONFIGURED, explain
from octavo_common.rpc.server import AddressInUse


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("no\nmodel", hint="set\n one"), MISCONFIGURED),
        (Unavailable("no\nmodel", hint="set\n one"), FAILED),
        (Internal("no\nmodel", hint="set\n one"), FAILED),
        # Whoever has the port may leave it.
        (AddressInUse("no\nmodel", hint="set\n one"), FAILED),
    ],
)
def test_a_service_says_in_one_line_why_it_ends_and_by_its_code_whether_to_try_again(
    error: OctavoError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain("octavo-x", error) == code
    assert capsys.readouterr().err == "octavo-x: no model - set one\n"
