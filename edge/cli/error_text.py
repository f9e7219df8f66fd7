"""Text of an error of a verb, for people or for programs.

Every verb may import it at its start, unlike the catalogue (error_catalog.py), which parses the source.
"""

from __future__ import annotations

from ringbuf.errors import BrimError


def code_of(error: Exception) -> str:
    """The code of an error: the name of its class; "" for the general classes, about which the catalogue has
    no more than the error itself.
    """
    kind = type(error)
    is_root = BrimError in kind.__bases__ or not issubclass(kind, BrimError)
    return "" if is_root or not kind.__module__.endswith(".errors") else kind.__name__


def error_text(verb: str, message: str, hint: str, code: str = "", *, as_json: bool) -> str:
    """Text of an error of a verb: message, remedy, and the code that `brim explain` takes.

    With --json it is one JSON object for programs.
    """
    if as_json:
        import json

        return json.dumps({"verb": verb, "error": message, "hint": hint, "code": code})
    lines = (f"brim {verb}: {message}", hint and f"  {hint}", code and f"  see: brim explain {code}")
    return "\n".join(filter(None, lines))
