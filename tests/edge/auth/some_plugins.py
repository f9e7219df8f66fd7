"""Plug-ins as somebody who knows amqtt would write them, for tests of what they are given and asked."""

import asyncio
from dataclasses import dataclass
from typing import Any

from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin


class Yes(BaseAuthPlugin, BaseTopicPlugin):  # type: ignore[misc]
    """Lets everybody do everything."""

    answer: bool | None = True

    async def authenticate(self, *, session: Any) -> bool | None:
        return self.answer

    async def topic_filtering(
        self, *, session: Any = None, topic: Any = None, action: Any = None
    ) -> bool | None:
        return self.answer


class No(Yes):
    """Permits nothing to any client."""

    answer = False


class Abstains(Yes):
    """Does not know."""

    answer = None


class Fails(Yes):
    """Has a bug."""

    async def authenticate(self, *, session: Any) -> bool | None:
        raise KeyError("a bug")

    async def topic_filtering(
        self, *, session: Any = None, topic: Any = None, action: Any = None
    ) -> bool | None:
        raise KeyError("a bug")


class Sleeps(Yes):
    """Waits for a server that is not there."""

    async def authenticate(self, *, session: Any) -> bool | None:
        await asyncio.sleep(3600)
        return True

    async def topic_filtering(
        self, *, session: Any = None, topic: Any = None, action: Any = None
    ) -> bool | None:
        await asyncio.sleep(3600)
        return True


class Waits(BaseAuthPlugin):  # type: ignore[misc]
    """Lets everybody in once somebody called go has come."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.go = asyncio.Event()

    async def authenticate(self, *, session: Any) -> bool | None:
        if session.username == "go":
            self.go.set()
        return await self.go.wait()


class NoCoroutine(BaseAuthPlugin):  # type: ignore[misc]
    """Forgot a word."""

    def authenticate(self, *, session: Any) -> bool | None:
        return True


class Notes(BaseAuthPlugin):  # type: ignore[misc]
    """Writes down what it sees."""

    async def authenticate(self, *, session: Any) -> bool | None:
        seen = (session.username, session.password, session.client_id)
        place = (session.remote_address, session.remote_port)
        self.context.logger.info(" ".join(map(str, (self.config.word, *seen, *place))))
        return True

    async def on_broker_pre_start(self) -> None:
        self.context.logger.info("on_broker_pre_start")

    async def on_broker_post_start(self) -> None:
        self.context.logger.info("on_broker_post_start")

    async def on_broker_pre_shutdown(self) -> None:
        self.context.logger.info("on_broker_pre_shutdown")

    async def on_broker_post_shutdown(self) -> None:
        self.context.logger.info("on_broker_post_shutdown")

    @dataclass
    class Config:
        """Options given to the plug-in."""

        word: str


class Visits(BasePlugin[Any]):  # type: ignore[misc]
    """Writes down what clients do.  Decides nothing."""

    async def on_broker_client_connected(self, *, client_id: str, client_session: Any) -> None:
        self.context.logger.info("%s connected as %s", client_id, client_session.username)
        if client_id == "trouble":
            raise KeyError("a bug")

    async def on_broker_client_disconnected(self, *, client_id: str, client_session: Any) -> None:
        self.context.logger.info("%s disconnected, was %s", client_id, client_session.username)

    async def on_broker_client_subscribed(self, *, client_id: str, topic: str, qos: int) -> None:
        self.context.logger.info("%s subscribed %s %d", client_id, topic, qos)

    async def on_broker_client_unsubscribed(self, *, client_id: str, topic: str) -> None:
        self.context.logger.info("%s unsubscribed %s", client_id, topic)


class Stuck(BasePlugin[Any]):  # type: ignore[misc]
    """Waits for the first client to leave before it hears of anybody else."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.go = asyncio.Event()

    async def on_broker_client_connected(self, *, client_id: str, client_session: Any) -> None:
        self.context.logger.info("%s came", client_id)
        await self.go.wait()
