"""State saver: lets a running broker write its session snapshot and its retained messages at once.

Owns nothing. `brim backup` copies the files afterwards. Each request has a ticket, the number of a snapshot:
the caller looks again with it, and no request waits for the disk.
"""

from __future__ import annotations

from edge.broker.dispatcher import Broker
from edge.errors import Refused
from edge.local.protocol import Saved
from edge.recovery.retained_store import RetainedStore


class StateSaver:
    """Saves the state of `broker`; methods run on its thread. `retained`: None if nothing is kept."""

    def __init__(self, broker: Broker, retained: RetainedStore | None) -> None:
        self._journal = broker.journal
        self._retained = retained

    def save(self, ticket: int) -> Saved:
        """Begin to save (`ticket` 0), or report whether that has ended. Raises Refused if a write failed."""
        journal = self._journal
        if ticket == 0:
            if self._retained is not None:
                self._retained.save()
            ticket = journal.request_snapshot()
        elif journal.failure:
            raise Refused(f"the session snapshot failed: {journal.failure}", hint="repair it, then try again")
        is_saving = self._retained is not None and self._retained.is_saving
        is_saved = not journal.is_open or journal.saved_round >= ticket
        return Saved(ticket, done=is_saved and not is_saving)
