"""Page of the Prometheus metrics, from the table in edge/metric_families.py."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generate import MissingDescription
from docs.generate.markdown import code, prose, table
from edge.metric_families import METRICS

__all__ = ["page"]

_HEADER = ("Metric", "Type", "Unit", "Labels", "`brim status --json`", "Meaning")
_UNITS = ("seconds", "bytes", "ratio")


def page() -> str:
    """Text of metrics.md."""
    about = "A broker with `metrics.listen` serves these metrics at `/metrics`, as text for Prometheus."
    return "\n".join(["# Metrics\n", about + "\n", table(_HEADER, _rows())])


def _rows() -> Iterator[tuple[str, ...]]:
    for name, metric in METRICS.items():
        if not metric.about:
            raise MissingDescription(f"edge/metric_families.py: {name} has no meaning")
        unit = next((it for it in _UNITS if name.removesuffix("_total").endswith(f"_{it}")), "count")
        labels = ", ".join(map(code, metric.labels))
        yield (
            code(name),
            metric.kind,
            unit,
            labels,
            metric.json and code(f".{metric.json}"),
            prose(metric.about),
        )
