"""brim request and brim reply, against a broker that runs."""

import json

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.mqtt import Subscribe, Subscription, encode
from tests.edge.cli.test_topics import brim
from tests.support.abuse import V5, connected
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.waiting import wait_until


def test_a_request_gets_the_replies_with_its_correlation_data(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    port = ("--port", str(broker.port))

    def subscriptions() -> int:
        rows = map(json.loads, brim(capsys, broker, "clients", "--json")[1].splitlines())
        return sum(row["subscriptions"] for row in rows)

    with (
        ModuleChild("edge", "reply", "calc/#", "--echo", "--json", *port) as echo,
        ModuleChild("edge", "reply", "calc/sum", "done", "-C", "2", *port) as constant,
    ):
        wait_until(lambda: subscriptions() == 2)
        assert main(["request", "calc/sum", "1+1", "-C", "2", *port]) == 0
        assert sorted(capsys.readouterr().out.split()) == ["1+1", "done"]
        request = json.loads(echo.line())
        assert (request["topic"], request["payload"]) == ("calc/sum", "1+1")
        assert request["properties"]["response_topic"].startswith("brim/response/")
        assert main(["pub", "calc/sum", "no response topic", "-q", "1", *port]) == 0  # printed, not answered
        assert json.loads(echo.line())["payload"] == "no response topic"
        assert constant.wait()[0] == 0  # -C 2
        assert main(["request", "calc/2", "x", "--json", *port]) == 0
        response = json.loads(capsys.readouterr().out)
        assert response["payload"] == "x"
        assert response["properties"]["correlation_data"]


def test_a_response_to_another_request_is_not_shown(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    port = ("--port", str(broker.port))
    with connected(broker.port, "noise", V5, clean_start=True) as noise:
        noise.sendall(encode(Subscribe(1, (Subscription("ask", 0),)), V5))
        assert noise.recv(9)
        words = ("request", "ask", "x", "--response-topic", "answers", "-W", "1s", "--json", *port)
        with ModuleChild("edge", *words) as request:
            assert noise.recv(1 << 12)  # the request has arrived, so its answer is subscribed to
            assert main(["pub", "answers", "without correlation data", *port]) == 0
            status, out, error = request.wait()
    assert (status, out) == (Exit.TIMEOUT, "")
    assert json.loads(error)["error"] == "0 of 1 response within 1 s"


def test_a_request_without_a_broker_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["request", "a", "--port", "1"]) == Exit.CANNOT_CONNECT
    assert main(["reply", "a", "x", "--port", "1"]) == Exit.CANNOT_CONNECT
    assert capsys.readouterr().err.count("\n") >= 2
