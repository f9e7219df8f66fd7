"""Password checks on a separate thread from the one that serves MQTT."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import pytest

from edge.auth.interfaces import ClientInfo
from edge.auth.password_checker import REMEMBER_S, PasswordChecker
from edge.auth.password_file import User, parse_users
from edge.auth.password_hash import make_hash
from edge.mqtt import ConnAck, Connect, ReasonCode
from tests.support.mqtt_bench import Bench
from tests.support.waiting import PATIENCE_S, wait_until


@dataclass
class Lock:
    """A hash that takes as long as the test wants, and counts."""

    opened: threading.Event = field(default_factory=threading.Event)
    checked: int = 0

    def fits(self, password: bytes) -> bool:
        self.checked += 1
        assert self.opened.wait(10)
        return password == b"secret"


@dataclass
class Turnstile:
    """A hash that lets through as many wrong passwords as the test wants, and right ones at once."""

    wrong: threading.Semaphore = field(default_factory=partial(threading.Semaphore, 0))

    def fits(self, password: bytes) -> bool:
        return password == b"secret" or not self.wrong.acquire(timeout=PATIENCE_S)


def facts(username: str | None, address: str = "") -> ClientInfo:
    return ClientInfo("c", username, address, 0)


def verdict(passwords: PasswordChecker, username: str | None, password: bytes | None) -> bool:
    found = passwords.authenticate(facts(username), password)
    return found if isinstance(found, bool) else found.result(PATIENCE_S)


@pytest.fixture
def lock():
    made = Lock()
    made.opened.set()
    return made


@pytest.fixture
def passwords(lock):
    made = PasswordChecker({"ann": User(lock)}, clock=lambda: now_s[0])
    now_s = made.test_clock = [0.0]  # type: ignore[attr-defined]
    yield made
    lock.opened.set()
    made.close()


def test_the_right_password_of_a_known_user_is_let_in_and_nothing_else(passwords):
    assert verdict(passwords, "ann", b"secret")
    assert not verdict(passwords, "ann", b"wrong")
    assert not verdict(passwords, "bob", b"secret")
    assert not verdict(passwords, "", b"secret")
    assert passwords.authenticate(facts("ann"), None) is False
    assert passwords.authenticate(facts(None), b"secret") is False


def test_somebody_unknown_costs_a_check_too(passwords, lock):
    verdict(passwords, "bob", b"secret")
    assert lock.checked == 1
    verdict(passwords, "bob", b"secret")  # and is not remembered
    assert lock.checked == 2


def test_a_user_with_scram_keys_only_has_no_password_that_could_be_sent(lock):
    passwords = PasswordChecker({"ann": User(lock), "bob": User()})
    assert not verdict(passwords, "bob", b"secret")
    assert lock.checked == 1
    passwords.close()


def test_what_was_right_is_remembered_for_a_minute_and_what_was_wrong_is_not(passwords, lock):
    verdict(passwords, "ann", b"wrong")
    assert isinstance(passwords.authenticate(facts("ann"), b"wrong"), Future)
    assert verdict(passwords, "ann", b"secret")
    before = lock.checked
    assert passwords.authenticate(facts("ann"), b"secret") is True
    assert isinstance(passwords.authenticate(facts("bob"), b"secret"), Future)
    passwords.test_clock[0] += REMEMBER_S + 1
    later = passwords.authenticate(facts("ann"), b"secret")
    assert isinstance(later, Future)
    assert later.result(PATIENCE_S)
    assert lock.checked >= before + 1


def test_new_users_end_what_was_remembered_and_what_is_being_checked(passwords, lock):
    lock.opened.clear()
    late = passwords.authenticate(facts("ann"), b"secret")
    assert isinstance(late, Future)
    wait_until(lambda: lock.checked == 1)
    passwords.replace({"ann": User(lock)})
    lock.opened.set()
    assert late.result(PATIENCE_S)  # it was right at the time of the question
    assert isinstance(passwords.authenticate(facts("ann"), b"secret"), Future)


def test_a_storm_of_passwords_is_refused_beyond_the_queue_but_not_those_remembered(lock, caplog):
    passwords = PasswordChecker({"ann": User(lock)}, waiting_max=3)
    assert verdict(passwords, "ann", b"secret")
    lock.opened.clear()
    waiting = [passwords.authenticate(facts("ann"), b"wrong") for _ in range(3)]
    assert [passwords.authenticate(facts("ann"), b"wrong") for _ in range(50)] == [False] * 50
    assert passwords.authenticate(facts("ann"), b"secret") is True
    assert passwords.refused_busy == {"": 50}
    assert caplog.text.count("password check queue full") == 1
    lock.opened.set()
    assert [one.result(PATIENCE_S) for one in waiting if isinstance(one, Future)] == [False] * 3
    wait_until(lambda: isinstance(passwords.authenticate(facts("ann"), b"wrong"), Future))
    passwords.close()


def test_an_address_that_floods_is_refused_itself_and_others_are_checked_before_it(caplog):
    """Far more than the queue takes; then somebody with the right password, from elsewhere."""
    turnstile = Turnstile()
    passwords = PasswordChecker({"ann": User(turnstile)}, waiting_max=100)
    flood = [passwords.authenticate(facts("ann", f"192.0.2.66:{port}"), b"wrong") for port in range(500)]
    assert flood.count(False) == 400
    assert passwords.refused_busy == {"192.0.2.66": 400}
    right = passwords.authenticate(facts("ann", "192.0.2.7:1"), b"secret")
    assert isinstance(right, Future)
    assert passwords.refused_busy == {"192.0.2.66": 401}  # whose last check has made room
    turnstile.wrong.release(2)  # both threads had one, and one was next
    assert right.result(PATIENCE_S)
    turnstile.wrong.release(len(flood))
    assert not any(one.result(PATIENCE_S) for one in flood if isinstance(one, Future))
    assert "address=192.0.2.66" in caplog.text
    passwords.close()


def test_clients_connect_with_passwords_that_are_checked_elsewhere():
    users = parse_users(f"ann:{make_hash(b'secret')}\n", "users")
    passwords = PasswordChecker(users)
    try:
        with Bench(authenticator=passwords) as bench:
            good, bad = bench.wire(), bench.wire()
            good.send(Connect("a", username="ann", password=b"secret"))
            bad.send(Connect("b", username="ann", password=b"guess"))
            wait_until(lambda: bench.settle() >= 0 and not bad.is_open)
            assert bad.received() == [ConnAck(False, ReasonCode.BAD_USER_NAME_OR_PASSWORD)]
            wait_until(lambda: bench.settle() >= 0 and bench.broker.sessions.get("a") is not None)
            assert good.received() == [ConnAck()]
            again = bench.wire()
            again.send(Connect("a2", username="ann", password=b"secret"))
            assert again.received() == [ConnAck()]  # at once
    finally:
        passwords.close()
