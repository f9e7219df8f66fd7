"""Page: one HTML file with its charts, styles and scripts in it. It needs no network and no server.

Jinja2 escapes every text. The policy in the page allows the two scripts in it by their checksums, and nothing
from elsewhere; charts are data, which a script of the page hands to plotly. Facts are in the tables: charts
only show them again, so that the page can be read without scripts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from bridge.spark.report.wording import count_in_words, moment, seconds_in_words


def render(context: Mapping[str, Any], charts: Mapping[str, go.Figure | None]) -> str:
    """The whole file. The template has the names of `context` and `charts`."""
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=count_in_words, seconds=seconds_in_words, moment=moment, number="{:,}".format
    )
    scripts = [_plotly(), _source("page.js")]
    page = environment.get_template("page.html.j2").render(
        **context,
        charts={name: _data(chart) for name, chart in charts.items() if chart is not None},
        style=_source("page.css"),
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - files of packages
        script_hashes=" ".join(map(_hash, scripts)),
    )
    return page + "\n"


def _plotly() -> str:
    """The library of plotly; only its own files are in it."""
    library: str = get_plotlyjs()
    return library.replace("</script", "<\\/script")


def _source(name: str) -> Markup:
    return Markup(files(__package__).joinpath(name).read_text(encoding="utf-8"))  # noqa: S704 - as above


def _data(chart: go.Figure) -> Markup:
    """A chart as JSON. plotly escapes < and >, so that it cannot end its <script>."""
    return Markup(chart.to_json())  # noqa: S704 - as said


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
