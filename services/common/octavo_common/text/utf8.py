"""Where a run of bytes ends inside a UTF-8 character. The library's incremental decoder keeps some bytes too long."""

from __future__ import annotations

# Second bytes that are allowed after a lead byte, where that is less than every continuation byte.
_SECOND = {0xE0: range(0xA0, 0xC0), 0xED: range(0x80, 0xA0), 0xF0: range(0x90, 0xC0), 0xF4: range(0x80, 0x90)}
_CONTINUATION = range(0x80, 0xC0)


def num_open_bytes(data: bytes) -> int:
    """How many bytes at the end are the beginning of a valid character, and not yet the whole of it: 0 to 3.

    They become exactly one character, whatever follows: a valid one, or U+FFFD.
    """
    for num_bytes in range(1, min(3, len(data)) + 1):
        lead = data[-num_bytes]
        if lead in _CONTINUATION:
            continue
        if 0xC2 <= lead <= 0xDF:
            length = 2
        elif 0xE0 <= lead <= 0xEF:
            length = 3
        elif 0xF0 <= lead <= 0xF4:
            length = 4
        else:
            return 0
        if num_bytes >= length or (num_bytes > 1 and data[1 - num_bytes] not in _SECOND.get(lead, _CONTINUATION)):
            return 0
        return num_bytes
    return 0
