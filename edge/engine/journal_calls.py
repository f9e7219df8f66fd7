"""Journal calls of the C engine: the state of sessions for a restart, and its replay
(ringbuf/c/mqtt/durable/journal.h).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ringbuf import Writer


class JournalEngine(Protocol):
    """The part of edge.engine.engine.Engine that writes the journal of sessions and replays it."""

    # Written by edge.session_store.

    def session_keep(self, session: int, kept: bool, /) -> bool:
        """Write changes of a session, or of a group's queue, to the journal, or no longer."""

    def journal_open(self, writer: Writer, position: int, output_waits: bool, in_log_bytes: int, /) -> None:
        """Write the journal there from now on. `output_waits`: a log syncs the journal, and output waits
        for that.
        `in_log_bytes`: so many bytes of the journal may be only in its log.
        """

    def journal_close(self) -> None:
        """Stop writing the journal."""

    def journal_append(self, record: bytes, /) -> bool:
        """Append a record of Python. False if it does not fit: a snapshot must replace it."""

    def journal_is_short(self) -> bool:
        """True if half of the journal is in use. Only a snapshot makes room; the rest is for messages."""

    def journal_end(self, at_once: bool, /) -> int | None:
        """Position at which the journal continues after a snapshot of now. Output waits for entries not yet
        written. None: the journal is closed, or has room soon and requests a snapshot again, unless
        `at_once`.
        """

    def journal_sections(self, first: int, bytes_max: int, /) -> tuple[bytes, int | None]:
        """About `bytes_max` bytes of entries for a snapshot, and the value to continue with: 0 to None."""

    def journal_snapshot_saved(self, position: int, due_bytes: int, /) -> None:
        """Free the journal before `position`. The next snapshot is due after `due_bytes`."""

    def routed_position(self, ring: int, /) -> int:
        """Position below which everything has been routed."""

    def block_log(self, ring: int, /) -> None:
        """Let the log take no further record of an own ring before it has synced the present entries."""

    def unblock_logs(self) -> None:
        """Let the logs take the records whose entries are synced. Each round of the engine does it, too."""

    def lowest_positions(self, first: int, records_max: int, /) -> tuple[bytes, int | None]:
        """Lowest needed positions, uint64 by ring, of about `records_max` records; continues as above."""

    # Replayed by edge.recovery, before any client is served.

    def add_ended_ring(self, logged: bool, /) -> int:
        """Add a ring that has ended, or whose epoch has ended. `logged`: the log may have its records."""

    def replay_begin(self) -> None:
        """Suspend the limits of queues until replay_end()."""

    def replay_session(self, number: int, session: int, /) -> None:
        """Use `session` for entries with this number from now on."""

    def replay_ring(self, number: int, ring: int, end: int, routed: int, /) -> None:
        """Use `ring` for entries with this number. Its records end at position `end`; those below `routed`
        were routed before.
        """

    def replay_entries(self, entries: bytes, /) -> bool:
        """Apply entries. False if they are unreadable from some place on."""

    def replayed_position(self, number: int, /) -> int:
        """Position below which all records were routed, of the ring with that number."""

    def replay_route(
        self, ring: int, position: int, records: memoryview | None, begin: int, /
    ) -> tuple[int, bytes | None]:
        """Route records from position `begin` on; `records` begin at `position`, None: to the end of a ring
        of this broker. If the second value is a topic name, the topic is unknown: call again with the first
        value as `begin`.
        """

    def replay_resolve(self, session: int, /) -> bytes | None:
        """Find topics and identifiers of a restored session. A name: that topic is unknown, call again."""

    def replay_refuse_topics(self) -> None:
        """Continue without the topics that are unknown."""

    def replay_log(self, ring: int, position: int, /) -> None:
        """Read records of an own ring from the log of an earlier configuration if the ring has overwritten
        them. That log ends at `position`.
        """

    def replay_resume_ring(self, ring: int, position: int, /) -> None:
        """Records of a producer ring below this position were routed before the restart."""

    def replay_end(self) -> int:
        """End the replay. Returns the number of records that sessions wait for and that no store has."""
