"""Page of the Prometheus metrics, from the table in edge/observe/metric_families.py."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generate import MissingDescription
from docs.generate.markdown import code, prose, table
from edge.observe.metric_families import METRICS

_HEADER = ("Metric", "Type", "Unit", "Labels", "`brim status --json`", "Meaning")
_UNITS = ("seconds", "bytes", "ratio")


def page() -> str:
    """Text of metrics.md."""
    about = "A broker with `metrics.listen` serves these metrics at `/metrics`, as text for Prometheus."
    return "\n".join(["# Metrics\n", about + "\n", table(_HEADER, _rows())])


def _rows() -> Iterator[tuple[str, ...]]:
    for name, metric in METRICS.items():
        if not metric.about:
            raise MissingDescription(f"edge/observe/metric_families.py: {name} has no meaning")
        base = name.removesuffix("_total")
        unit = next((unit for unit in _UNITS if base.endswith(f"_{unit}")), "count")
        labels = ", ".join(map(code, metric.labels))
        yield (
            code(name),
            metric.kind,
            unit,
            labels,
            metric.json and code(f".{metric.json}"),
            prose(metric.about),
        )
