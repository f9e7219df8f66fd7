"""Requests with random values, most of the type of their field: none is a defect of the broker."""

import random
import socket
from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from edge.config.directories import control_socket
from edge.local import protocol
from edge.local.protocol import Connection, Overview, Report
from tests.support.brim_process import BrimProcess
from tests.support.waiting import PATIENCE_S

REQUESTS = 600
NUMBERS = [0, 1, 2, -1, 255, 256, *(sign << bits for bits in (16, 31, 32, 53, 63) for sign in (1, -1)),
           (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1]  # fmt: skip
TEXTS = ["", "#", "+/#", "a/1", "$SYS/#", "$share/g/#", "default", "default-0", "sessions", "..", "\0",
         "\x1b[31m", "é" * 100, "/" * 500, "+/" * 200 + "#", "x" * 60_000]  # fmt: skip
OTHERS: list[Any] = [
    None,
    True,
    1.5,
    float("nan"),
    float("-inf"),
    b"\xff",
    [],
    {},
    [[[]]],
    {"a": 1},
    *NUMBERS,
    *TEXTS,
]


class Values:
    """Values for types, most of them valid."""

    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)

    def of(self, kind: inspect.Type) -> Any:
        if self.chosen.random() < 0.03:
            return self.chosen.choice(OTHERS)
        match kind:
            case inspect.IntType():
                return self.chosen.choice(
                    [value for value in (kind.ge, kind.lt) if value is not None] + NUMBERS
                )
            case inspect.StrType():
                return self.chosen.choice(TEXTS)
            case inspect.BoolType():
                return self.chosen.random() < 0.5
            case inspect.VarTupleType():
                return [self.of(kind.item_type) for _ in range(self.chosen.choice([0, 1, 2, 10, 500]))]
            case inspect.TupleType():
                return [self.of(item) for item in kind.item_types]
            case inspect.StructType():
                fields = [each for each in kind.fields if each.required or self.chosen.random() < 0.8]
                return {"op": kind.tag} | {each.encode_name: self.of(each.type) for each in fields}
        raise AssertionError(kind)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_request_of_the_control_socket_is_a_defect(broker: BrimProcess, seed: int) -> None:
    values, sent, connection = Values(seed), 0, None
    kinds = [inspect.type_info(kind) for kind in get_args(protocol.Request) if kind is not protocol.Reload]
    while sent < REQUESTS:
        request = values.of(values.chosen.choice(kinds))
        if not isinstance(request, dict):
            continue
        data = msgspec.msgpack.encode(request | {"version": protocol.VERSION})
        if len(data) > protocol.REQUEST_MAX_BYTES:
            continue
        if connection is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(PATIENCE_S)
            connection.connect(str(control_socket(broker.runtime_dir)))
        sent += 1
        answer = b""
        with suppress(ConnectionError):  # a request of another type ends the connection
            connection.send(data)
            answer = connection.recv(1 << 20)
        if not answer:
            connection.close()
            connection = None
    if connection is not None:
        connection.close()
    with Connection(broker.runtime_dir) as client:
        assert client.request(Overview(), Report).report["local"].get("defects", 0) == 0
    assert "please report" not in broker.stop()
