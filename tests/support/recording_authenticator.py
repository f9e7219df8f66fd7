"""An authenticator that lets everybody in, and writes down who it was."""

from edge.auth.interfaces import ClientInfo


class RecordingAuthenticator:
    """`seen`: who has come, in order."""

    def __init__(self) -> None:
        self.seen: list[ClientInfo] = []

    def authenticate(self, client: ClientInfo, password: bytes | None) -> bool:
        """Yes."""
        self.seen.append(client)
        return True
