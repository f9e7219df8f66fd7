"""Reason codes: the enum in C has the names and numbers of the table in Python."""

import re

from edge.mqtt.reason_codes import ReasonCode
from tests.support.project import ROOT

MQTT = ROOT / "ringbuf" / "c" / "mqtt" / "in"
CODE = re.compile(r"^    MQ_REASON_(\w+) = (0x[0-9a-f]{2}),?$", re.MULTILINE)


def test_the_enum_in_c_has_the_codes_of_the_table() -> None:
    found = CODE.findall((MQTT / "reason_codes.h").read_text())
    assert found == [(code.name, f"0x{code:02x}") for code in ReasonCode]
