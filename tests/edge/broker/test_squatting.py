"""Client identifiers that another client holds: who gets one, what becomes of the session behind it."""

import logging
from typing import Any

import pytest

from edge.auth.interfaces import ClientInfo
from edge.broker.session_admin import SessionAdmin, SessionListing
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    Publish,
    ReasonCode,
    Version,
    Will,
)
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import Anybody

V5 = Version.V5


class Users(Anybody):
    """Accepts any user name with the password "secret".  Clients without a name are not its business."""

    def authenticate(self, client: ClientInfo, password: bytes | None) -> bool:
        return client.username is not None and password == b"secret"


def users() -> Bench:
    return Bench(authenticator=Users())


def user(bench: Bench, client_id: str, name: str, version: Version = Version.V311, **fields: Any) -> Wire:
    """A client that logs in, and keeps its session."""
    wants = Properties(session_expiry_interval_s=3_600) if version is V5 else Properties()
    return bench.client(
        client_id,
        version=version,
        username=name,
        password=b"secret",
        clean_start=False,
        properties=wants,
        **fields,
    )


def squat(bench: Bench, *, stays: bool) -> Wire:
    """An anonymous client that keeps a session as plc-1, in which a message waits."""
    squatter = bench.client("plc-1", clean_start=False)
    squatter.subscribe("secret/#", qos=1)
    if not stays:
        squatter.drop()
    sender = bench.client("sender")
    sender.send(Publish("secret/1", b"for the squatter", 1, packet_id=1))
    sender.drop()
    return squatter


@pytest.mark.parametrize("version", [Version.V311, V5])
@pytest.mark.parametrize("stays", [True, False])
def test_a_user_gets_the_identifier_of_an_anonymous_client_and_nothing_of_its_session(
    stays: bool, version: Version
) -> None:
    with users() as bench:
        squatter = squat(bench, stays=stays)
        plc = user(bench, "plc-1", "plc", version)  # Session Present is 0
        assert plc.received() == []
        assert not squatter.is_open
        (session,) = (it for it in bench.broker.sessions if it.client_id == "plc-1")
        assert (session.client_info.identity, dict(session.subscriptions)) == ("plc", {})
        plc.subscribe("mine", qos=1)
        plc.drop()
        thief = bench.wire()
        thief.send(Connect("plc-1", clean_start=False))
        assert thief.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]
        bench.client("s").send(Publish("mine", b"for the plc", 1, packet_id=1))
        back = bench.wire()
        back.send(Connect("plc-1", username="plc", password=b"secret", clean_start=False))
        answer, message = back.received()
        assert answer == ConnAck(True)
        assert isinstance(message, Publish)
        assert message.payload == b"for the plc"


def test_the_anonymous_client_is_told_and_its_will_is_published() -> None:
    with users() as bench:
        heard = bench.client("h")
        heard.subscribe("gone")
        wants = Properties(session_expiry_interval_s=3_600)
        will = Will("gone", b"squatter")
        squatter = bench.client("plc-1", version=V5, will=will, properties=wants)
        user(bench, "plc-1", "plc")
        assert squatter.received() == [Disconnect(ReasonCode.SESSION_TAKEN_OVER)]
        assert heard.publishes() == [("gone", b"squatter", 0)]


@pytest.mark.parametrize("stays", [True, False])
def test_of_two_users_the_holder_stays_and_the_other_is_told_why(
    stays: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with users() as bench, caplog.at_level(logging.WARNING):
        holder = user(bench, "plc-1", "ann")
        holder.subscribe("t", qos=1)
        if not stays:
            holder.drop()
        for version in (Version.V311, V5):
            other = bench.wire(version)
            other.send(Connect("plc-1", username="bob", password=b"secret", version=version))
            (answer,) = other.received()
            assert isinstance(answer, ConnAck)
            assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
            words = answer.properties.reason_string or ""
            assert ("another user" in words) == (version is V5)
            assert "ann" not in words  # which bob need not know
        (line,) = (it.getMessage() for it in caplog.records)
        assert "holder=ann" in line
        assert "user=bob" in line
        assert "brim clients forget" in line
        again = user(bench, "plc-1", "ann", present=True)
        assert list(bench.broker.sessions.get("plc-1").subscriptions) == ["t"]  # type: ignore[union-attr]
        again.drop()


def test_a_session_that_is_removed_frees_its_identifier() -> None:
    with users() as bench:
        admin = SessionAdmin(bench.broker, bench.stats)
        holder = user(bench, "plc-1", "ann", V5)
        holder.subscribe("t", qos=1)
        assert admin.remove("plc-1")
        assert holder.received() == [Disconnect(ReasonCode.ADMINISTRATIVE_ACTION)]
        assert not admin.remove("plc-1")
        bench.client("s").send(Publish("t", b"x", 1, packet_id=1))
        away = user(bench, "plc-1", "bob")
        assert away.received() == []
        away.drop()
        assert admin.remove("plc-1")
        assert bench.broker.sessions.get("plc-1") is None


def test_sessions_are_listed_page_by_page() -> None:
    with users() as bench:
        admin = SessionAdmin(bench.broker, bench.stats)
        for n in range(5):
            user(bench, f"c{n}", "ann").drop()
        listing = SessionListing()
        pages = [admin.page(listing, first, 2) for first in (0, 2, 4)]
        assert [[row["client_id"] for row in rows] for rows, _ in pages] == [
            ["c0", "c1"],
            ["c2", "c3"],
            ["c4"],
        ]
        assert [more for _, more in pages] == [True, True, False]
        assert pages[0][0][0]["connected"] is False


def test_a_session_that_ends_between_two_pages_hides_no_other() -> None:
    with users() as bench:
        admin, listing = SessionAdmin(bench.broker, bench.stats), SessionListing()
        for n in range(8):
            user(bench, f"c{n}", "ann").drop()
        rows, more = admin.page(listing, 0, 4)
        listing.take_back(rows[2:])
        for client_id in ("c0", "c3", "c7"):
            assert admin.remove(client_id)
        shown = rows[:2]
        while more:
            rows, more = admin.page(listing, len(shown), 2)
            shown += rows
        assert [row["client_id"] for row in shown] == ["c0", "c1", "c2", "c4", "c5", "c6"]


def test_pages_of_sessions_keep_the_order_and_begin_at_the_number_that_is_requested() -> None:
    with users() as bench:
        admin, listing = SessionAdmin(bench.broker, bench.stats), SessionListing()
        names = [f"c{n}" for n in range(8)]
        for name in names:
            user(bench, name, "ann").drop()

        def page(first: int, count: int) -> list[str]:
            rows, _ = admin.page(listing, first, count)
            return [row["client_id"] for row in rows]

        rows, _ = admin.page(listing, 0, 4)
        listing.take_back(rows[1:])
        assert page(1, 4) == names[1:5]
        assert page(2, 3) == names[2:5]  # as a reader that has lost an answer
        assert page(7, 3) == names[7:]


def test_a_restart_knows_who_has_the_identifier() -> None:
    with Lives(authenticator=Users()) as lives:
        bench = lives.start()
        squat(bench, stays=False)
        user(bench, "plc-1", "plc").drop()
        bench = lives.restart()
        (session,) = bench.broker.sessions
        assert (session.client_info.identity, dict(session.subscriptions)) == ("plc", {})
        thief = bench.wire()
        thief.send(Connect("plc-1", clean_start=False))
        assert thief.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]
        user(bench, "plc-1", "plc", present=True)
