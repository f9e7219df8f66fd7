"""Golden bytes of the control socket's protocol, and of that of a bridge's command socket."""

import re
from pathlib import Path
from typing import Any

import pytest

import bridge.drain.control_socket as of_bridge
import edge.local.protocol as of_broker
from edge.local.protocol import RingInfo
from edge.rpc.protocol import Done, Failed, Protocol, encode

FILES = Path(__file__).parents[2] / "golden"
RING = RingInfo("press-0", "/dev/shm/brim/press-0", 3, "press", "partition", "block", 250)

BROKER: dict[str, Any] = {
    "request status": of_broker.Status(),
    "request overview": of_broker.Overview(),
    "request rings": of_broker.Rings(("a/#", "b"), follow=True),
    "request admit": of_broker.Admit("press-0", 7),
    "request produce": of_broker.Produce("cam", "frames"),
    "request drained": of_broker.Drained("lake", "press-0", 3, 100, ((5, 7), (9, 9))),
    "request sessions": of_broker.Sessions(256),
    "request session": of_broker.Session("plc-1"),
    "request disconnect": of_broker.Disconnect("plc-1"),
    "request remove_session": of_broker.RemoveSession("plc-1"),
    "answer ring_list": of_broker.RingList((RING,)),
    "answer ring_added": of_broker.RingAdded(RING),
    "answer report": of_broker.Report({"edge": "press", "rings": []}),
    "answer session_list": of_broker.SessionList(({"client_id": "plc-1"},), more=True),
    "answer session_details": of_broker.SessionDetails({"client_id": "plc-1"}, not_shown=2),
    "request reload": of_broker.Reload(),
    "request save": of_broker.Save(7),
    "answer saved": of_broker.Saved(7, done=True),
    "request settings": of_broker.Settings(),
    "request log_lines": of_broker.LogLines(1_795_000_000_000_000),
    "answer log_page": of_broker.LogPage(({"number": 7, "message": "ready"},), 7, 2, more=True),
    "answer reloaded": of_broker.Reloaded(("acl",), ("users: line 3",), ("limits.qos_max",)),
    "answer setting_list": of_broker.SettingList({"edge_id": "press"}),
    "request retained": of_broker.Retained("a/#", 4096, 64),
    "request clear_retained": of_broker.ClearRetained("a/#", 4096),
    "answer retained_list": of_broker.RetainedList(({"topic": "a/b", "payload": b"x"},), after=None),
    "answer cleared": of_broker.Cleared(2, 8192),
    "request delayed": of_broker.Delayed((1_795_000_000_000_000_000, 7), 64),
    "request cancel_delayed": of_broker.CancelDelayed((7, 8)),
    "answer delayed_list": of_broker.DelayedList(({"id": 7, "payload": b"x"},), more=True),
    "answer cancelled": of_broker.Cancelled((7,)),
    "answer done": Done(),
    "answer failed": Failed("why", "what to do"),
}
BRIDGE: dict[str, Any] = {
    "request state": of_bridge.State(),
    "request pause": of_bridge.Pause(),
    "request resume": of_bridge.Resume(),
    "request skip": of_bridge.Skip("press", 0),
    "request skip, all": of_bridge.Skip(),
    "request previewskip": of_bridge.PreviewSkip("press", 0),
    "request backfill": of_bridge.Backfill("press", 0, 5_000),
    "answer report": of_bridge.Report({"name": "lake", "partitions": []}),
    "answer effects": of_bridge.Effects(("press-0: offsets 1 to 2 are skipped",)),
    "answer failed": Failed("why", "what to do"),
}
PROTOCOLS = {
    "control/broker-v2.txt": (of_broker.PROTOCOL, BROKER),
    "control/bridge-v2.txt": (of_bridge.PROTOCOL, BRIDGE),
}
CASES = [(file, name) for file, (_, messages) in PROTOCOLS.items() for name in messages]


def golden(file: str) -> dict[str, bytes]:
    found = re.findall(r"^(request|answer) (.+): ([0-9a-f]+)$", (FILES / file).read_text(), re.MULTILINE)
    return {f"{kind} {name}": bytes.fromhex(data) for kind, name, data in found}


@pytest.mark.parametrize("file", PROTOCOLS)
def test_every_message_has_golden_bytes_of_this_version(file: str) -> None:
    protocol, messages = PROTOCOLS[file]
    assert set(golden(file)) == set(messages)
    assert file.endswith(f"-v{protocol.version}.txt")


@pytest.mark.parametrize(("file", "name"), CASES)
def test_a_message_has_the_bytes_that_it_always_had(file: str, name: str) -> None:
    protocol: Protocol = PROTOCOLS[file][0]
    message, data = PROTOCOLS[file][1][name], golden(file)[name]
    assert encode(message) == data
    decode = protocol.decode_request if name.startswith("request") else protocol.decode_answer
    assert decode(data) == message
