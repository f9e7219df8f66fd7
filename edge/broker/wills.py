"""Wills: bounds their memory, and publishes each at its time.

Owns the wills of absent clients; the will of a connected client belongs to its connection. A will is
published at the earlier of its delay and the end of its session [MQTT-3.1.2-8], and not at all if the client
returns before that [MQTT-3.1.3-9].

Slices. A network failure ends thousands of connections at once. Their wills are published in slices of
SLICE_BYTES for each poll of the broker's thread, in order, and wait for room in the ring.

Memory. All wills together are bounded, and those of a tenant by its quota. As the memory fills, large wills
are refused first: a will gets at most a 64th of the rest, so that a few clients with large wills do not
exclude those with small ones. One user or address has its share (quota.share_percent), as of other tables.

Invariants: a session has at most one will here. Each will is published once or cancelled, and stays in the
journal until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from edge.auth.interfaces import ClientInfo
from edge.auth.tenant_names import prefix_in
from edge.broker.quotas import key_of, owner_text
from edge.engine.timer_heap import TimerHeap
from edge.mqtt import Will
from edge.mqtt.properties import record_properties
from edge.session_store.journal_writer import SessionJournal
from ringbuf import FLAG_EXPIRY

SLICE_BYTES = 256 << 10
WILL_COST_BYTES = (
    8 << 10
)  # what every will costs of a slice, in addition to its payload: at most 32 wills a slice
SHARE_DIVISOR = 64
SMALL_BYTES = 512  # a will of this size is accepted while there is any room
OBJECT_BYTES = 512  # Python objects of one will


class WillLimits(Struct, frozen=True):
    """Bounds of wills. Names as in the configuration file."""

    will_max_bytes: int = 128 << 10  # of one will
    wills_max_bytes: int = 16 << 20  # of all wills
    share_percent: int = 100  # of them, for an owner that is the only one; 100: no limit


class TenantWills(Struct):
    """Use and limits of wills of one tenant; 0: no limit. `refused`: by cause, since the start."""

    count: int = 0
    held_bytes: int = 0
    count_max: int = 0
    bytes_max: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("wills", "will bytes"), 0))

    def refusal(self, size: int, held: int) -> str:
        """Reason to refuse a will of `size` bytes in place of one of `held`; 0: the client has none."""
        if self.count_max and not held and self.count >= self.count_max:
            self.refused["wills"] += 1
            return f"the tenant has {self.count} wills; wills_max = {self.count_max}"
        if self.bytes_max and size > held and self.held_bytes + size - held > self.bytes_max:
            self.refused["will bytes"] += 1
            return f"a will of {size} bytes exceeds wills_max_bytes = {self.bytes_max} of the tenant"
        return ""


class _DueWill(Struct, frozen=True):
    """The will of a client that has disconnected, and the time at which it is due."""

    client_info: ClientInfo
    will: Will
    due_s: float


def message_of(will: Will) -> tuple[bytes, int]:
    """Properties of a will in the form of a record, and the record flags that go with them."""
    if will.properties.will_delay_interval_s is not None:
        will = replace(will, properties=replace(will.properties, will_delay_interval_s=None))
    expires = will.properties.message_expiry_interval_s is not None
    return record_properties(will.properties), FLAG_EXPIRY if expires else 0


def will_bytes(will: Will) -> int:
    """Approximate memory of a will."""
    user = sum(len(name) + len(value) + OBJECT_BYTES // 4 for name, value in will.properties.user)
    return (
        len(will.topic)
        + len(will.payload)
        + len(will.properties.correlation_data or b"")
        + user
        + OBJECT_BYTES
    )


class Wills:
    """Waiting wills, by client identifier. `publish` receives the facts of the client and its will."""

    def __init__(
        self,
        publish: Callable[[ClientInfo, Will], None],
        journal: SessionJournal,
        limits: WillLimits | None = None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create the table. `has_room` returns False while messages of the broker wait for room in a ring."""
        self.held_bytes = 0  # of all wills, those of connected clients too
        self._of_owners: Counter[bytes] = Counter()  # the same of each owner
        self.of_tenants: dict[str, TenantWills] = {}  # by the prefix of the tenant
        self._publish = publish
        self._journal = journal
        self.limits = limits or WillLimits()
        self._has_room = has_room
        self._slice_bytes = SLICE_BYTES  # rest of the current slice
        self._waiting: dict[str, _DueWill] = {}
        self._due: dict[str, _DueWill] = {}  # to be published next, in order
        self._deadlines: TimerHeap[str] = TimerHeap()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._due)

    @property
    def next_s(self) -> float:
        """Time at which the next will is due; -inf if one is due now."""
        return float("-inf") if self._due else self._deadlines.next_s

    # ---- of connected clients ----

    def refusal(self, client_info: ClientInfo, will: Will, held: Will | None) -> str:
        """Reason why there is no memory for the will of a client; "" if there is.

        `held`: the will of the client's present connection.
        """
        size, limits = will_bytes(will), self.limits
        if client_info.prefix:
            waits = self._waiting.get(client_info.client_id) or self._due.get(client_info.client_id)
            held = held or (waits.will if waits is not None else None)
            tenant = self._tenant(client_info.prefix)
            if reason := tenant.refusal(size, will_bytes(held) if held is not None else 0):
                return reason
        if size > limits.will_max_bytes:
            return f"a will of {size} bytes exceeds will_max_bytes = {limits.will_max_bytes}"
        left = limits.wills_max_bytes - self.held_bytes
        if size > left or size > max(SMALL_BYTES + OBJECT_BYTES, left // SHARE_DIVISOR):
            return f"a will of {size} bytes has no room; wills_max_bytes = {limits.wills_max_bytes}"
        return self._over_share(key_of(client_info), size, will_bytes(held) if held is not None else 0)

    def _over_share(self, owner: bytes, size: int, held: int) -> str:
        """Reason why the owner may have no further will of `size` bytes in place of one of `held`; or ""."""
        percent, room = self.limits.share_percent, self.limits.wills_max_bytes
        own = self._of_owners[owner] + size - held
        free = room - self.held_bytes - size + held
        if not owner or percent == 100 or size <= held or own * (100 - percent) <= free * percent:
            return ""
        has = f"{owner_text(owner)} has wills of {self._of_owners[owner]} bytes"
        return f"a will of {size} bytes has no room: {has} of {room} (quota.share_percent = {percent})"

    def accepted(self, client_info: ClientInfo, will: Will) -> None:
        """Count the will of a client that has connected."""
        self._count(client_info, will, 1)

    def limit_tenant(self, prefix: str, count_max: int, bytes_max: int) -> None:
        """Use other limits of a tenant from now on; 0: no limit. Its wills stay."""
        tenant = self._tenant(prefix)
        tenant.count_max, tenant.bytes_max = count_max, bytes_max

    def _tenant(self, prefix: str) -> TenantWills:
        return self.of_tenants.setdefault(prefix, TenantWills())

    def _count(self, client_info: ClientInfo, will: Will, sign: int) -> None:
        size, owner = sign * will_bytes(will), key_of(client_info)
        self.held_bytes += size
        self._of_owners[owner] += size
        if self._of_owners[owner] <= 0:
            del self._of_owners[owner]
        if prefix := prefix_in(client_info.client_id):
            tenant = self._tenant(prefix)
            tenant.count += sign
            tenant.held_bytes += size

    def discarded(self, client_info: ClientInfo, will: Will) -> None:
        """Drop the will of a client that sent DISCONNECT."""
        self._ended(client_info, will)

    # ---- of clients that have disconnected ----

    def disconnected(self, client_info: ClientInfo, will: Will, now_s: float) -> None:
        """Publish the will now, or after its delay. The session of the client continues."""
        delay_s = will.properties.will_delay_interval_s or 0
        if delay_s == 0:
            self._publish_soon(_DueWill(client_info, will, now_s))
            return
        self._wait(_DueWill(client_info, will, now_s + delay_s))

    def restored(self, client_info: ClientInfo, will: Will, due_s: float) -> None:
        """Take over a will from before a restart, to be published at `due_s` unless the client returns."""
        self.accepted(client_info, will)
        self._wait(_DueWill(client_info, will, due_s))

    def waiting(self) -> list[tuple[ClientInfo, Will, float]]:
        """Waiting wills, each with its client and the time at which it is due."""
        return [
            (will.client_info, will.will, will.due_s)
            for will in (*self._due.values(), *self._waiting.values())
        ]

    def reconnected(self, client_id: str) -> None:
        """Cancel the will of a client that has returned [MQTT-3.1.3-9].

        A will that was already due is published now, before the messages of the new connection.
        """
        if (due := self._due.pop(client_id, None)) is not None:
            self._publish_now(due)
        if (waiting := self._waiting.pop(client_id, None)) is not None:
            self._deadlines.cancel(client_id)
            self._ended(waiting.client_info, waiting.will)

    def session_ended(self, client_id: str) -> None:
        """Publish the will of a session that has ended."""
        if (waiting := self._waiting.pop(client_id, None)) is not None:
            self._deadlines.cancel(client_id)
            self._publish_soon(waiting)

    def tick(self, now_s: float) -> None:
        """Publish the wills that are due, up to one slice."""
        for client_id in self._deadlines.due(now_s):
            self._due[client_id] = self._waiting.pop(client_id)
        self._slice_bytes = SLICE_BYTES
        while self._due and self._may_publish():
            self._publish_now(self._due.pop(next(iter(self._due))))

    def stop(self, *, all_of_them: bool) -> None:
        """Publish the wills that are due; all wills if `all_of_them`."""
        for client_id in list(self._waiting) if all_of_them else ():
            self.session_ended(client_id)
        while self._due:
            self._publish_now(self._due.pop(next(iter(self._due))))

    def _wait(self, left: _DueWill) -> None:
        client_id = left.client_info.client_id
        self._waiting[client_id] = left
        self._deadlines.set(client_id, left.due_s)
        self._journal.will(left.client_info, left.will, left.due_s)

    def _publish_soon(self, left: _DueWill) -> None:
        """Publish in this slice if there is room, otherwise in one of the next."""
        before = self._due.pop(left.client_info.client_id, None)
        if before is not None:
            self._publish_now(before)
        if not self._due and self._may_publish():
            self._publish_now(left)
        else:
            self._due[left.client_info.client_id] = left

    def _may_publish(self) -> bool:
        return self._slice_bytes > 0 and self._has_room()

    def _publish_now(self, left: _DueWill) -> None:
        self._slice_bytes -= WILL_COST_BYTES + len(left.will.payload)
        self._publish(left.client_info, left.will)
        self._ended(left.client_info, left.will)

    def _ended(self, client_info: ClientInfo, will: Will) -> None:
        self._count(client_info, will, -1)
        self._journal.will_done(client_info.client_id)
