"""Plug-ins of amqtt, loaded as the broker loads them, and the questions that it asks them."""

from concurrent.futures import Future
from contextlib import contextmanager

from edge.auth.amqtt_compat.adapter import PluginAdapter
from edge.auth.interfaces import AccessList, Authenticator, ClientInfo
from tests.support.waiting import PATIENCE_S


@contextmanager
def plugins(*wanted, on_news=lambda: None):
    made = PluginAdapter(wanted, on_news)
    try:
        yield made
    finally:
        made.close()


def client(name="ann", client_id="c", address="127.0.0.1:5000"):
    return ClientInfo(client_id, name, address, 0, identity=name, verified=True)


def said(answer):
    return answer.result(PATIENCE_S) if isinstance(answer, Future) else answer


def login(made: PluginAdapter, who: ClientInfo, password: bytes | None) -> bool:
    asked: Authenticator | None = made.authenticator
    assert asked
    return bool(said(asked.authenticate(who, password)))


def access(made: PluginAdapter) -> AccessList:
    assert made.access
    return made.access
