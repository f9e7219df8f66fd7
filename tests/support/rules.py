"""Rules for tests: everything is allowed. A test overrides what it refuses, delays or records."""

from edge.auth.interfaces import Answer, ClientInfo


class Anybody:
    """Believes every user name."""

    def authenticate(self, client: ClientInfo, password: bytes | None) -> Answer:
        return True

    def is_still_authorized(self, client: ClientInfo) -> bool:
        return True


class AnyTopic:
    """Allows each client every topic."""

    def may_publish(self, client: ClientInfo, topic: str) -> Answer:
        return True

    def may_subscribe(self, client: ClientInfo, topic_filter: str) -> Answer:
        return True

    def may_receive(self, client: ClientInfo, topic: str) -> bool:
        return True


class AllButSecret(AnyTopic):
    """No client receives the topic `secret`."""

    def __init__(self) -> None:
        self.secret = ""

    def may_receive(self, client: ClientInfo, topic: str) -> bool:
        return topic != self.secret
