"""Page of the $SYS topics, from the table in edge/sys_topics.py."""

from __future__ import annotations

from docs.generate import MissingDescription
from docs.generate.markdown import code, prose, table
from docs.generate.source import doc_of
from edge import sys_topics

__all__ = ["page"]


def page() -> str:
    """Text of sys-topics.md."""
    if missing := [name for name, about in sys_topics.TOPICS.items() if not about]:
        raise MissingDescription(f"edge/sys_topics.py: {', '.join(missing)} without a meaning")
    rows = ((code(sys_topics.ROOT + name), prose(about)) for name, about in sys_topics.TOPICS.items())
    about = doc_of(sys_topics, "edge.sys_topics").split("\n\n")[2]
    return "\n".join(["# $SYS topics\n", prose(about) + "\n", table(("Topic", "Value"), rows)])
