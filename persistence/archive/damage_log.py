"""Log lines for damage of archives: each damaged part once, with the ring and the offsets that are lost.

Owns the list of reported parts.  Threads: any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

log = logging.getLogger(__name__)


class DamageLog:
    """Reported parts of archives.  Readers of the same archives share one DamageLog."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: dict[int, set[str]] = {}  # by base; at most all row groups and the footer

    def report(self, base: int, path: str, damage: Mapping[str, str]) -> None:
        """Log the parts of an archive that were not reported before; `damage`: the cause of each part."""
        with self._lock:
            reported = self._reported.setdefault(base, set())
            news = {part: reason for part, reason in damage.items() if part not in reported}
            reported.update(news)
        for part, reason in news.items():
            log.error("log damage found archive=%s part=%r reason=%s", path, part, reason)

    def forget(self, base: int) -> None:
        """Forget an archive that was removed or replaced."""
        with self._lock:
            self._reported.pop(base, None)
