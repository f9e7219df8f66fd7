"""Terminal escapes: makes untrusted text safe to print, because topics and payloads may hold escape
sequences.
"""

from __future__ import annotations

import re

# Control characters, and those that change the direction of text or break lines.
_ACTS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb]")


def escaped(text: str) -> str:
    r"""Return `text` on one line, with active characters as \n, \x1b, \u202e."""
    return _ACTS.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def escaped_payload(payload: bytes | memoryview) -> str:
    r"""As escaped(), for bytes; invalid UTF-8 as \xff."""
    return escaped(str(payload, "utf-8", "backslashreplace"))
