"""Recent lines: the newest log lines of this process, for `brim logs` and the web console.

Bounded: LINES_MAX lines and TEXT_MAX characters; older lines are removed. The first line of a process has its
time in microseconds as number, and each further line the next number. So a reader continues after the last
number that it has, and a process that started later has greater numbers. Any thread may use it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Final

LINES_MAX: Final = 1_000
TEXT_MAX: Final = 256 << 10  # characters of all lines together
MESSAGE_MAX: Final = 4_000  # characters of one line
EXCEPTION_MAX: Final = 8_000

Line = dict[str, Any]


class RecentLines:
    """Lines of the log as dictionaries; `message` and `exception` are text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[Line] = deque()
        self._text = 0
        self._began = self._last = time.time_ns() // 1_000

    def add(self, line: Line) -> None:
        """Keep a line. The caller gives the dictionary away."""
        if len(line["message"]) > MESSAGE_MAX:  # its fields are as long
            line["message"] = f"{line['message'][:MESSAGE_MAX]}…"
            line.pop("fields", None)
        if "exception" in line:
            line["exception"] = line["exception"][-EXCEPTION_MAX:]  # the error stands at the end
        with self._lock:
            self._last += 1
            self._lines.append({"number": self._last, **line})
            self._text += _characters(line)
            while len(self._lines) > LINES_MAX or self._text > TEXT_MAX:
                self._text -= _characters(self._lines.popleft())

    def since(self, number: int) -> tuple[list[Line], int, int]:
        """Lines after `number`, the number of the last line, and the count of lines that were removed.

        A number of another process gives all lines.
        """
        with self._lock:
            if not self._began <= number <= self._last:
                return list(self._lines), self._last, 0
            lines = [line for line in self._lines if line["number"] > number]
            return lines, self._last, self._last - number - len(lines)


def _characters(line: Line) -> int:
    return len(line["message"]) + len(line.get("exception", ""))
