"""SASLprep (RFC 4013): one normal form for user names and passwords that look the same.

A pure function on strings, by the tables of the standard library.
"""

from __future__ import annotations

import stringprep as tables
import unicodedata

_PROHIBITED = (
    tables.in_table_c12,
    tables.in_table_c21_c22,
    tables.in_table_c3,
    tables.in_table_c4,
    tables.in_table_c5,
    tables.in_table_c6,
    tables.in_table_c7,
    tables.in_table_c8,
    tables.in_table_c9,
    tables.in_table_a1,  # not assigned in Unicode 3.2, so their normal form may change later
)


def saslprep(text: str) -> str:
    """Normal form of `text`. Raises ValueError if it has a forbidden character."""
    if text.isascii() and text.isprintable():
        return text
    mapped = text.translate(
        {
            ord(char): None if tables.in_table_b1(char) else " "
            for char in set(text)
            if tables.in_table_b1(char) or tables.in_table_c12(char)
        }
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    chars = dict.fromkeys(prepared)  # each once: one character may have a normal form of 18
    for char in chars:
        if any(is_prohibited(char) for is_prohibited in _PROHIBITED):
            raise ValueError(f"the character {char!a} is not allowed")
    if any(map(tables.in_table_d1, chars)) and (
        any(map(tables.in_table_d2, chars))
        or not (tables.in_table_d1(prepared[0]) and tables.in_table_d1(prepared[-1]))
    ):
        raise ValueError(
            "text from right to left must begin and end so, with nothing from left to right in it"
        )
    return prepared
