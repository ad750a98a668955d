"""Text of others (a simulator's exception, a dead worker's last words), to be shown on a terminal.

It may have any length, and may hold control characters that a terminal obeys.
"""

from __future__ import annotations

_CUT = " … {} characters … "
# At least the length of `_CUT` with a number in it.
_CUT_LENGTH = 40


def legible(text: str, most: int) -> str:
    """The text with at most `most` characters: a longer one is cut in its middle. Characters that
    cannot be printed are written as Python's repr writes them; newline and tab stay."""
    half = (most - _CUT_LENGTH) // 2
    head, tail = _printable(text[:most]), _printable(text[-half:])
    if len(text) <= most and len(head) <= most:
        return head
    return head[:half] + _CUT.format(max(0, len(text) - 2 * half)) + tail[-half:]


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
