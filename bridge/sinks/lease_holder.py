"""Holder of a lease, as JSON in the lock file or lease object of a sink, and the refusal of another holder.

    {"holder": key, "installation": id, "boot": id, "place": device.inode, "host": name, "turn": id}

`holder` decides who is refused, and `turn` whether another bridge was there; the other keys are for people.
Each process that takes the lease draws a new random turn, and the checkpoint has the turn in which it was
compared with the sink (bridge/drain/drain.py). A lease that was released has `holder` "" and the turn of its
last holder. Brim before installations had an id wrote only `holder`, and later ones no `turn`.
"""

from __future__ import annotations

import json
import os
from typing import Any

from bridge.errors import SinkUnavailable
from bridge.format.installation import Holder
from bridge.sinks.interface import Turn


def next_turn(data: bytes) -> Turn:
    """A new turn, after the one in a lock file or lease."""
    try:
        before = str(json.loads(data).get("turn", ""))
    except (ValueError, AttributeError):
        before = ""
    return Turn(os.urandom(8).hex(), before)


def holder_as_dict(holder: Holder) -> dict[str, Any]:
    """The holder for JSON."""
    return {
        "holder": holder.key,
        "installation": holder.installation,
        "boot": holder.boot,
        "place": holder.place,
        "host": holder.host,
    }


def holder_in(data: bytes) -> Holder | str:
    """The holder in a lock file or lease; its text if it is no installation; "": released."""
    try:
        values = json.loads(data)
        key = str(values["holder"])
    except (ValueError, KeyError, TypeError):
        return "an unknown holder"
    if "installation" not in values:
        return key
    holder = Holder(*(str(values.get(name, "")) for name in ("installation", "boot", "place", "host")))
    return holder if holder.key == key else key


def refusal(
    where: str, other: Holder | str, own: Holder | str | None, left_s: float | None = None
) -> SinkUnavailable:
    """Error for a place to which another bridge drains.

    `left_s`: seconds after which its lease expires if it is dead; None: it lives.
    """
    text = f"{where}: another bridge drains this edge there"
    text += f": {other}; this one is {own}" if other and own else ""
    hint = (
        "stop that one, or give the edge of this one another edge_id and its bridge another name: what this "
        "machine holds is then drained under them, and nothing is removed"
    )
    if _is_copy(other, own):
        text += "; one state directory is a copy of the other"
        hint += "; records that both logs have are then in the lake under both edge ids"
    if left_s is not None:
        hint += f"; if that one is dead, this one takes over in {left_s:.0f} s"
    return SinkUnavailable(text, hint=hint)


def _is_copy(other: Holder | str, own: Holder | str | None) -> bool:
    if not isinstance(other, Holder) or not isinstance(own, Holder):
        return False
    return other.installation == own.installation and (other.boot, other.place) != (own.boot, own.place)
