"""Page of the $SYS topics, from the table in edge/broker/sys_topics.py."""

from __future__ import annotations

import edge.broker.sys_topics
from docs.generate import MissingDescription
from docs.generate.markdown import code, prose, table
from docs.generate.source import doc_of
from edge.broker.sys_topics import ROOT, TOPICS


def page() -> str:
    """Text of sys-topics.md."""
    if missing := [name for name, about in TOPICS.items() if not about]:
        raise MissingDescription(f"edge/broker/sys_topics.py: {', '.join(missing)} without a meaning")
    rows = ((code(ROOT + name), prose(about)) for name, about in TOPICS.items())
    about = doc_of(edge.broker.sys_topics, "edge.broker.sys_topics").split("\n\n")[2]
    return "\n".join(["# $SYS topics\n", prose(about) + "\n", table(("Topic", "Value"), rows)])
