"""Load generator of `brim bench mqtt`: many MQTT clients, their results and their costs.

Works with any broker. Python creates the clients and reports the result; the clients run in C
(ringbuf/c/load).
"""

from edge.load.errors import LoadError, NothingListens
from edge.load.generator import Generator
from edge.load.histogram import Histogram
from edge.load.result import Result
from edge.load.runner import calibrate, measure
from edge.load.scenario import SCENARIOS, TOUR, LoadTarget, Scenario, qos_pattern
from edge.load.sink import Sink

__all__ = [
    "SCENARIOS",
    "TOUR",
    "Generator",
    "Histogram",
    "LoadError",
    "LoadTarget",
    "NothingListens",
    "Result",
    "Scenario",
    "Sink",
    "calibrate",
    "measure",
    "qos_pattern",
]
