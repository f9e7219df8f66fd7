"""Work in a forked child."""

import os
import select
import signal
from collections.abc import Callable

from tests.support.waiting import PATIENCE_S


def in_child(work: Callable[[], object]) -> str:
    """Result or error of `work` in a forked child, as text; "hung" if it does not end."""
    end, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = repr(work())
        except BaseException as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}"
        os.write(begin, said.encode())
        os._exit(0)
    os.close(begin)
    with open(end) as pipe:
        said = pipe.read() if select.select([pipe], [], [], PATIENCE_S)[0] else "hung"
    os.kill(pid, signal.SIGKILL)  # it has ended, or hangs
    os.waitpid(pid, 0)
    return said
