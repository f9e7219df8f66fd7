"""Topic tree, log-in limit and sessions with a clock of the test, and the gaps that the sampler fills."""

from pathlib import Path

import pytest

from edge.auth.password_file import User
from edge.mqtt import Publish
from edge.web import topic_sampler
from edge.web.login_limit import ALL_FAILURES, FAILURES, ORIGINS_MAX, WINDOW_S, LoginLimit
from edge.web.login_sessions import IDLE_S, LIFETIME_S, OF_USER_MAX, LoginSessions
from edge.web.roles import ConsoleRole, UserFile
from edge.web.topic_sampler import TopicSampler
from edge.web.topic_tree import TopicTree
from ringbuf import WakeupThread
from tests.edge.web.test_read_api import publish
from tests.support.brim_process import BrimProcess
from tests.support.waiting import wait_until
from tests.support.web_console import write_users


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_tree_adds_up_levels_and_rates_fall_without_messages() -> None:
    tree = TopicTree(10)
    for second in range(1, 11):
        tree.add("a/b", b"x", second, 1, 20, float(second), 1.0)
        tree.add("a/c/d", b"y", second, 0, 10, float(second), 1.0)
    (row,), total = tree.children("", 0, 10, "topic", 10.0)
    assert (row["topic"], row["topics"], row["count"], row["value"], total) == ("a", 2, 300, None, 1)
    assert row["rate"] == pytest.approx(30, rel=0.1)  # at once, and not after an average
    rows, _ = tree.children("a", 0, 10, "rate", 10.0)
    assert [(it["name"], it["levels"]) for it in rows] == [("b", 0), ("c", 1)]
    (late,), _ = tree.children("", 0, 10, "topic", 60.0)
    assert late["rate"] < 1
    assert tree.children("a/b/c", 0, 10, "topic", 0.0) == ([], 0)
    assert tree.children("no", 0, 10, "topic", 0.0) == ([], 0)


def test_the_tree_is_bounded_and_a_topic_may_have_topics_below() -> None:
    tree = TopicTree(2)
    for topic in ("a", "a/b", "c", "d"):
        tree.add(topic, b"x", 1, 0, 1, 1.0, 0.0)
    assert (tree.topics, tree.others) == (2, 2)
    assert [row["topic"] for row in tree.search("", 0, 10, 1.0)[0]] == ["a", "a/b"]


def test_skipped_messages_add_topics_and_change_no_value() -> None:
    tree = TopicTree(10)
    tree.add("known", b"new", 9, 0, 5, 1.0, 0.0)
    tree.add_skipped("known", b"old", 1, 0, 3)
    tree.add_skipped("found", b"old", 1, 0, 3)
    rows = {row["topic"]: (row["count"], row["value"]) for row in tree.search("", 0, 10, 1.0)[0]}
    assert rows == {"known": (5, b"new"), "found": (3, b"old")}


def test_topics_of_a_burst_are_found_later(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_sampler, "TICK_RECORDS", 50)
    monkeypatch.setattr(topic_sampler, "TICK_S", 0.05)
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        sampler = TopicSampler(runtime_directory)
        try:
            publish(broker, Publish("first", b"x"))
            wait_until(lambda: sampler.children("", 0, 10, "topic")["total"] == 1)
            publish(broker, *(Publish(f"burst/{number}", b"x") for number in range(400)))
            wait_until(lambda: sampler.children("burst", 0, 1, "topic")["total"] == 400)
        finally:
            sampler.stop()
    WakeupThread.of_process().close()


def test_failures_of_an_address_end_its_tries_for_a_while() -> None:
    clock = Clock()
    limit = LoginLimit(clock)
    for _ in range(FAILURES):
        assert limit.wait_s("10.0.0.1") == 0
        limit.failed("10.0.0.1")
    assert limit.wait_s("10.0.0.1") == WINDOW_S
    assert limit.wait_s("10.0.0.2") == 0
    clock.now_s += WINDOW_S
    assert limit.wait_s("10.0.0.1") == 0


def test_failures_of_many_addresses_are_bounded_together_and_in_memory() -> None:
    limit = LoginLimit(Clock())
    for number in range(ALL_FAILURES + ORIGINS_MAX):
        limit.failed(f"10.0.{number // 250}.{number % 250}")
    assert limit.wait_s("10.9.9.9") > 0
    assert len(limit._by_origin) == ORIGINS_MAX


def test_guesses_of_many_addresses_do_not_lock_out_an_address_of_a_user() -> None:
    limit = LoginLimit(Clock())
    limit.failed("10.1.1.1")
    limit.succeeded("10.1.1.1")
    for number in range(ALL_FAILURES):
        limit.failed(f"10.0.0.{number}")
    assert limit.wait_s("10.9.9.9") > 0
    for _ in range(FAILURES):
        assert limit.wait_s("10.1.1.1") == 0
        limit.failed("10.1.1.1")
    assert limit.wait_s("10.1.1.1") > 0
    for number in range(2 * ORIGINS_MAX):
        limit.succeeded(f"10.0.{number // 250}.{number % 250}")
    assert len(limit._known) == ORIGINS_MAX


def test_log_ins_of_a_user_are_not_failures_and_give_no_further_guesses() -> None:
    limit = LoginLimit(Clock())
    for _ in range(2 * ALL_FAILURES):
        assert limit.wait_s("10.0.0.1") == 0
        limit.failed("10.0.0.1")
        limit.succeeded("10.0.0.1")
    for _ in range(FAILURES):
        assert limit.wait_s("10.0.0.1") == 0
        limit.failed("10.0.0.1")  # the password of another user
        if limit.wait_s("10.0.0.1") == 0:
            limit.failed("10.0.0.1")
            limit.succeeded("10.0.0.1")
    assert limit.wait_s("10.0.0.1") > 0


def test_sessions_end_by_idleness_and_age_and_are_bounded(tmp_path: Path) -> None:
    clock = Clock()
    write_users(tmp_path / "users")
    users = UserFile(tmp_path / "users", ["ann"], clock=clock)
    sessions = LoginSessions(users, clock)
    credentials: User = users.users["ann"]
    token = sessions.begin("ann", credentials)
    login = sessions.find(token)
    assert login is not None
    assert login.role is ConsoleRole.ADMIN
    clock.now_s += IDLE_S
    assert sessions.find(token) is None
    token = sessions.begin("ann", credentials)
    for _ in range(int(LIFETIME_S // (IDLE_S - 1))):
        clock.now_s += IDLE_S - 1
        assert sessions.find(token) is not None
    clock.now_s += IDLE_S - 1
    assert sessions.find(token) is None
    tokens = [sessions.begin("ann", credentials) for _ in range(OF_USER_MAX + 2)]
    assert [sessions.find(token) is not None for token in tokens] == [False, False, *[True] * OF_USER_MAX]
    assert len(sessions) == OF_USER_MAX
