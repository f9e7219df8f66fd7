"""Shares of one owner: no key, user or address takes all groups, members or other places of all consumers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq.auth

from brim import consumer
from edge.consumers import coordinator
from edge.consumers.client_socket import RequestClient
from edge.consumers.delivery_settings import NO_SETTINGS, DeliverySettings
from edge.consumers.protocol import VERSION, Done, Forget, GroupList, Groups, Join, Joined, NotDone, SetGroup
from edge.consumers.quota import OverShare, Quota
from edge.consumers.requester import Requester
from edge.errors import Refused
from edge.local.curve_keys import Curve
from edge.rpc.protocol import encode
from ringbuf import Ring
from tests.support.consumer_desk import endpoint_over

GROUPS_MAX = 256


@pytest.fixture
def ring(runtime_directory: Path) -> Iterator[Ring]:
    with Ring.create(runtime_directory / "some-0", capacity_bytes=1 << 20, epoch=1) as ring:
        yield ring


@pytest.fixture
def keys(tmp_path: Path) -> Callable[[str], Curve]:
    """Accepted keys by name; the secret key of the endpoint is `server`."""
    clients = tmp_path / "clients"
    clients.mkdir()
    for name in ("greedy", "other"):
        zmq.auth.create_certificates(clients, name)
    zmq.auth.create_certificates(tmp_path, "server")
    return lambda name: Curve(clients / f"{name}.key_secret", tmp_path / "server.key")


def with_keys(directory: Path) -> dict[str, Path]:
    return {"secret_key_file": directory / "server.key_secret", "client_keys_dir": directory / "clients"}


def join(at: dict[str, Any], *groups: str) -> None:
    """Join one group after the other, on one connection for each 64."""
    for first in range(0, len(groups), 64):
        with RequestClient(**at) as client:
            for group in groups[first : first + 64]:
                client.request(Join(client.number(), VERSION, group, ("a/#",), session_ms=3_600_000), Joined)


def test_one_key_cannot_take_all_groups_also_after_a_restart(ring, tmp_path, keys, caplog):
    for life in range(2):
        with endpoint_over(ring, tmp_path, "tcp://127.0.0.1:*", **with_keys(tmp_path)) as endpoint:
            greedy, other = ({"endpoint": endpoint.endpoint, "curve": keys(it)} for it in ("greedy", "other"))
            if life == 0:
                join(greedy, *(f"g{number}" for number in range(192)))
            for _ in range(2):
                with pytest.raises(
                    Refused, match=r"has 19\d of 19\d groups \(allowed: 256 of all, and 3 times"
                ):
                    join(greedy, "more")
            with consumer(f"other-{life}", "a/#", **other) as joined:
                assert joined.joined
            with RequestClient(**other) as client:
                groups, _ = client.request(Groups(1, VERSION), GroupList)
                assert groups.counts["over_share"] == 2
                assert {group.owner[:4] for group in groups.groups} == {"key "}
                assert len({group.owner for group in groups.groups}) == 2
                for number in range(life * 3):
                    client.request(Forget(number + 2, VERSION, f"g{number}"), Done)
            if life == 1:
                join(greedy, "more")
    warnings = [it for it in caplog.records if it.levelno == logging.WARNING and "share" in it.message]
    assert len(warnings) == 2  # one in each life
    assert "owner=" in warnings[0].message


def test_one_key_cannot_take_all_members_by_many_connections(ring, tmp_path, keys, monkeypatch):
    monkeypatch.setattr(coordinator, "MEMBERS_MAX", 8)
    with endpoint_over(ring, tmp_path, "tcp://127.0.0.1:*", **with_keys(tmp_path)) as endpoint:
        greedy, other = ({"endpoint": endpoint.endpoint, "curve": keys(it)} for it in ("greedy", "other"))
        for _ in range(6):
            join(greedy, "g")
        with pytest.raises(
            Refused, match=r"has 6 of 6 members \(allowed: 8 of all, and 3 times the free ones"
        ):
            join(greedy, "g")
        join(other, "g")


def test_a_group_counts_for_its_first_member_whoever_changes_its_settings(desk):
    def joins(owner: str, settings: DeliverySettings = NO_SETTINGS) -> None:
        request = Join(1, VERSION, "g", ("a/#",), settings=settings)
        desk.coordinator.receive(owner.encode(), encode(request), (), owner)
        desk.turn()

    def owners() -> tuple[str, list[str]]:
        (group,) = desk.ask(Groups, GroupList, "g").groups
        return group.owner, [member.owner for member in group.members]

    joins("uid 1")
    joins("uid 2", DeliverySettings(lease_ms=60_000))
    assert owners() == ("uid 1", ["uid 1", "uid 2"])
    desk.ask(SetGroup, Done, "g", DeliverySettings(tries_max=2))
    assert owners()[0] == "uid 1"


def test_programs_of_loopback_are_one_owner_and_the_own_user_has_no_share(ring, tmp_path):
    (tmp_path / "tcp").mkdir()
    (tmp_path / "ipc").mkdir()
    groups = [f"g{number}" for number in range(GROUPS_MAX)]
    refused = pytest.raises(Refused, match=r"address 127\.0\.0\.1 has 192 of 192 groups")
    with endpoint_over(ring, tmp_path / "tcp", "tcp://127.0.0.1:*") as endpoint, refused:
        join({"endpoint": endpoint.endpoint}, *groups)
    with endpoint_over(ring, tmp_path / "ipc", f"ipc://{tmp_path}/s") as endpoint:
        join({"endpoint": endpoint.endpoint}, *groups)
        with pytest.raises(Refused, match=r"too many groups: 256 \(allowed: 256"):
            join({"endpoint": endpoint.endpoint}, "more")


def test_a_share_of_requests_and_bytes_is_of_all_connections_of_an_owner():
    quota = Quota("requests", 8, 8, 80)
    ann = [Requester(b"%d" % number, "uid 1") for number in range(7)]
    for peer in ann[:6]:
        quota.take(peer, 1)
    with pytest.raises(OverShare, match="uid 1 has 6 of 6 requests"):
        quota.take(ann[6], 1)
    quota.take(Requester(b"7", "uid 2"), 1)
    quota.give(ann[0], 1)
    quota.give(ann[1], 1)
    with pytest.raises(OverShare, match="uid 1 has 4 of 5 bytes of requests"):
        quota.take(ann[0], 70)
    quota.take(Requester(b"8", "uid 3"), 70)
    quota.give(Requester(b"8", "uid 3"), 70)
    quota.take(Requester(b"9", ""), 1)
    quota.take(Requester(b"9", ""), 1)
    quota.take(Requester(b"9", ""), 1)
    with pytest.raises(NotDone, match="8 of all are under way"):
        quota.take(Requester(b"9", ""), 1)
