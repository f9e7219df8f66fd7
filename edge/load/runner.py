"""Runner of one measurement, and of its calibration."""

from __future__ import annotations

import dataclasses

from edge.load.generator import Generator, Tick
from edge.load.result import Result, result_of
from edge.load.scenario import LoadTarget, Scenario
from edge.load.sink import Sink

CALIBRATION_S = 0.4
CALIBRATION_CONNECTIONS = 500
PATIENCE_S = 5.0


def measure(
    target: LoadTarget, scenario: Scenario, tick: Tick | None = None, *, patience_s: float = PATIENCE_S
) -> Result:
    """Connect, publish, wait for the rest, disconnect.

    A message that has not arrived `patience_s` after the last packet counts as lost. Ctrl-C ends the
    measurement early: the result so far, `interrupted`. Raises LoadError, NothingListens.
    """
    with Generator(target, scenario, tick) as crowd:
        try:
            crowd.connect()
            if scenario.name == "connect":
                crowd.idle(scenario.hold_s)
            elif not scenario.publishers:
                crowd.listen(scenario.duration_s)
            else:
                crowd.publish(scenario.duration_s if not scenario.messages or scenario.rate else 86_400.0)
                crowd.drain(patience_s)
        except KeyboardInterrupt:
            return result_of(crowd, interrupted=True)
        return result_of(crowd)


def calibrate(scenario: Scenario, target: LoadTarget | None = None) -> Result:
    """Measure the generator against a sink in this process: its own limit for such a scenario."""
    version = (target or LoadTarget()).version
    changes: dict[str, object] = {"duration_s": CALIBRATION_S, "hold_s": 0.0, "topic_filter": ""}
    if scenario.messages:
        changes["messages"] = min(scenario.messages, 10_000)
    if scenario.pairing in {"pairs", "shared"}:  # the sink ignores topics
        changes |= {"pairing": "everybody", "publishers": 1, "subscribers": 1}
    if not scenario.publishers:
        changes |= {"publishers": 1, "pairing": "everybody", "outstanding": 20_000, "messages": 0}
        changes["payload_bytes"] = max(64, scenario.payload_bytes)
    if scenario.name == "connect":
        changes["publishers"] = min(CALIBRATION_CONNECTIONS, scenario.publishers)
    with Sink() as sink:
        there = LoadTarget("127.0.0.1", sink.port, version=version)
        return measure(there, dataclasses.replace(scenario, **changes))  # type: ignore[arg-type]
