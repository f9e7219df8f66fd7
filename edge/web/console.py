"""Console: the parts behind the API, from start() to stop().

Owns the link to the broker, the views, users and sessions. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from edge.auth.password_checker import PasswordChecker
from edge.config.schema import Web
from edge.logging_setup import AUDIT, pairs
from edge.web.api_model import Call
from edge.web.broker_link import BrokerLink
from edge.web.client_list import ClientList
from edge.web.login_limit import LoginLimit
from edge.web.login_sessions import LoginSessions
from edge.web.monitor import Monitor
from edge.web.roles import UserFile
from edge.web.tap_feed import TapFeed
from edge.web.topic_sampler import TopicSampler

audit = logging.getLogger(AUDIT)

CHECKS_MAX = 16  # passwords that wait for a check; each takes 30 ms


class Logins:
    """Users, their sessions, and the limit of failures; only with a password file."""

    def __init__(self, users: UserFile) -> None:
        self.users = users
        self.sessions = LoginSessions(users)
        self.limit = LoginLimit()
        self.checker = PasswordChecker(users.users, waiting_max=CHECKS_MAX)

    def refresh(self) -> None:
        """Take over a changed password file."""
        if self.users.refresh():
            self.checker.replace(self.users.users)


class Console:
    """All parts. `settings.users_file` None: everyone who reaches the console reads, and changes nothing."""

    def __init__(self, settings: Web, runtime_dir: Path | None) -> None:
        """Read the password file. Raises AuthFileError, EdgeError."""
        self.settings = settings
        self.runtime_dir = runtime_dir
        self.logins: Logins | None = None
        if settings.users_file is not None:
            self.logins = Logins(UserFile(settings.users_file, settings.admins, settings.operators))

    def start(self) -> None:
        """Start the views, on the running event loop."""
        self.link = BrokerLink(self.runtime_dir)
        self.monitor = Monitor(self.link)
        self.clients = ClientList(self.link)
        self.topics = TopicSampler(self.runtime_dir)
        self.taps = TapFeed(self.runtime_dir)
        self.querying: set[str] = set()  # users whose query runs
        self._task = asyncio.create_task(self.monitor.run())

    async def stop(self) -> None:
        """Stop the views."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self.topics.stop)
        self.link.close()
        if self.logins is not None:
            self.logins.checker.close()

    def record(self, call: Call, action: str, **facts: object) -> None:
        """Write an action of a user to the audit log."""
        who = pairs(action=action, user=call.user, role=call.role.name.lower(), peer=call.peer, **facts)
        audit.info("console action %s", who)
