"""Object-store sink, by obstore: S3 and compatible stores, Google Cloud Storage, Azure.

obstore, the extra `objects`, is imported when a sink is opened.

A file is one PUT with "create only" (If-None-Match: *), so the store prevents a second copy of a retried
file. If the name exists already, the footers are compared, and equal footers are a success. In all of these
stores a PUT is atomic, and durable when it is answered. A lease (lease.py) keeps other bridges of the edge
out.

Only the drain retries: obstore's own retries are turned off, and every request has a time limit.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bridge.errors import BadName, BridgeError, SinkUnavailable
from bridge.format.file_builder import DrainedFile
from bridge.format.installation import Holder
from bridge.sinks.directory import conflict
from bridge.sinks.interface import StoredEntry, Turn
from bridge.sinks.lease import Lease
from ringbuf.extras import install_extra

if TYPE_CHECKING:
    from obstore.store import ObjectStore

TIMEOUT = "30s"  # per request: 8 MiB at 2.2 Mbit/s
CONNECT_TIMEOUT = "5s"
REASON_MAX = 400  # characters: a portal answers with a page, whose text is in the error
REMOVED_AT_ONCE = 1000  # in one request of S3; the lease is checked before each
# Options that obstore requires as options of the HTTP client, in addition to those of the store. It reads
# both from text: booleans as true or false, durations as 30s or 1min. An option in the wrong place makes it
# panic.
CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
# Addresses that obstore asks for credentials if none are given: a machine in the cloud would answer.
NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal")
CREDENTIALS = "check the credentials of the bridge, and that they may put and list below this prefix"

_TOOK = re.compile(r" in [0-9.]+(?:ns|µs|ms|s)\b")
_BODY = re.compile(r":? *<(?:\?xml|Error)")
_REASON = re.compile(r"<Code>([^<]*)</Code>\s*(?:<Message>([^<]*)</Message>)?")


class ObjectSink:
    """Drained files in an object store. `store` is obstore's; `url` is for people and the checkpoint."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        import obstore
        from obstore import exceptions

        self._obstore = obstore
        self._already_exists = exceptions.AlreadyExistsError
        self._errors = (exceptions.BaseError, OSError, ValueError, NotImplementedError)
        self._store = store
        self._url = url
        self._leases: dict[str, Lease] = {}
        self._holder: Holder | None = None

    @classmethod
    def of_url(cls, url: str, options: Mapping[str, str]) -> ObjectSink:
        """The sink of an s3:// or other URL; `options` are obstore's for the store and its HTTP client.

        Credentials come from the sources of the store's own tools: environment, profile, instance metadata.
        Raises BadName, SinkUnavailable if obstore is missing.
        """
        try:
            from obstore.exceptions import BaseError
            from obstore.store import MemoryStore, from_url
        except ImportError as error:
            hint = install_extra("objects")
            raise SinkUnavailable(f"{url}: obstore is not installed", hint=hint) from error
        parts = urlsplit(url)
        if parts.scheme == "memory":
            return cls(MemoryStore(), url)
        client: dict[str, Any] = {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
        if options.get("endpoint", "").startswith("http://"):
            client["allow_http"] = True
        client |= {key: value for key, value in options.items() if key in CLIENT_OPTIONS}
        own = {key: value for key, value in options.items() if key not in CLIENT_OPTIONS}
        no_retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
        make: Any = from_url  # its overloads want literal option names
        try:
            store = make(url, client_options=client, retry_config=no_retries, **own)
        except (BaseError, ValueError, TypeError, OSError) as error:
            hint = "see obstore's options for this store"
            raise BadName(f"{url}: {_first_line(error)}", hint=hint) from error
        return cls(store, f"{parts.scheme}://{parts.hostname or ''}{parts.path}")

    @property
    def url(self) -> str:
        """See FileSink."""
        return self._url

    def hold_as(self, holder: Holder) -> None:
        """See Leasing."""
        self._holder = holder

    def begin(self, edge: str) -> Turn | None:
        """See FileSink."""
        with self._errors_as_unavailable(""):
            next(iter(self._obstore.list(self._store, prefix=f"edge={edge}", chunk_size=1)), None)
            return self._lease(edge).take()

    def put(self, file: DrainedFile) -> None:
        """See FileSink."""
        with self._errors_as_unavailable(file.name):
            lease = self._leases.get(file.footer.edge)
            if lease is not None:
                lease.keep()
            try:
                self._obstore.put(self._store, file.name, file.parts, mode="create", use_multipart=False)
            except self._already_exists:
                self._compare(file)
            if lease is not None:
                lease.keep()  # lost: the next begin() finds out if another bridge has given this number

    def _compare(self, file: DrainedFile) -> None:
        """Return if the stored file is this file, by its footer, which has a checksum of the rest.

        Otherwise raise.
        """
        length = self._obstore.head(self._store, file.name)["size"]
        if not file.is_held_by(length, lambda begin, end: self._range(file.name, begin, end)):
            raise conflict(f"{self._url}/{file.name}", length, file.length)

    def _range(self, name: str, begin: int, end: int) -> bytes:
        """Bytes begin .. end of a file. An empty range is not requested: stores answer it with an error."""
        return bytes(self._obstore.get_range(self._store, name, start=begin, end=end)) if end > begin else b""

    def names(self, prefix: str) -> Iterator[str]:
        """See FileSink."""
        directory, _, begin = prefix.rpartition("/")
        after = prefix if begin else None  # stores accept only whole levels as a prefix
        with self._errors_as_unavailable(prefix):
            for chunk in self._obstore.list(self._store, prefix=directory, offset=after):
                yield from (
                    path
                    for entry in chunk
                    if (path := entry["path"]).startswith(prefix) and not _hidden(path)
                )

    def days(self, edge: str) -> list[str]:
        """See MergingStore."""
        with self._errors_as_unavailable(f"edge={edge}"):
            found = self._obstore.list_with_delimiter(self._store, prefix=f"edge={edge}")["common_prefixes"]
        names = (path.rstrip("/").rpartition("/")[2] for path in found)
        return [name.removeprefix("dt=") for name in names if name.startswith("dt=")]

    def entries(self, prefix: str, after: str = "") -> Iterator[StoredEntry]:
        """See MergingStore."""
        with self._errors_as_unavailable(prefix):
            for chunk in self._obstore.list(self._store, prefix=prefix.rstrip("/"), offset=after or None):
                for entry in chunk:
                    if not _hidden(entry["path"]):
                        yield StoredEntry(entry["path"], entry["size"], entry["last_modified"].timestamp())

    def read(self, path: str, last: int | None = None) -> bytes:
        """See MergingStore."""
        with self._errors_as_unavailable(path):
            if last is None:
                return bytes(self._obstore.get(self._store, path).bytes())
            length = self._obstore.head(self._store, path)["size"]
            return self._range(path, max(length - last, 0), length)

    def probe(self, edge: str) -> float:
        """See MergingStore."""
        path = f"edge={edge}/.probe"
        self._keep_lease(path)
        with self._errors_as_unavailable(path):
            self._obstore.put(self._store, path, b"", use_multipart=False)
            now_s = self._obstore.head(self._store, path)["last_modified"].timestamp()
            self._obstore.delete(self._store, path)
        return now_s

    def publish(self, staged: str, path: str) -> None:
        """See MergingStore. A copy replaces the same content, because not all stores copy conditionally."""
        self._keep_lease(path)
        with self._errors_as_unavailable(path):
            self._obstore.copy(self._store, staged, path)

    def remove(self, paths: Sequence[str]) -> None:
        """See MergingStore."""
        for at in range(0, len(paths), REMOVED_AT_ONCE):
            self._keep_lease(paths[at])
            with self._errors_as_unavailable(paths[at]), contextlib.suppress(FileNotFoundError):
                self._obstore.delete(self._store, list(paths[at : at + REMOVED_AT_ONCE]))

    def _keep_lease(self, path: str) -> None:
        edge = path.partition("/")[0].removeprefix("edge=")
        with self._errors_as_unavailable(path):
            self._lease(edge).keep()

    def _lease(self, edge: str) -> Lease:
        return self._leases.setdefault(edge, Lease(self._store, self._url, edge, self._holder))

    @contextlib.contextmanager
    def _errors_as_unavailable(self, path: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise self._unavailable(path, error) from error

    def close(self) -> None:
        """See FileSink."""
        while self._leases:
            self._leases.popitem()[1].give_up()

    def _unavailable(self, name: str, error: Exception) -> SinkUnavailable:
        return SinkUnavailable(f"{self._url}/{name}: {_first_line(error)}", hint=_remedy(error))


def _hidden(path: str) -> bool:
    """True if Spark and Hive would ignore the path, as Brim does."""
    return path.rpartition("/")[2].startswith(".")


def _first_line(error: Exception) -> str:
    """At most REASON_MAX characters of obstore's message, without its debug dump and times, with the cause
    from the store's XML, if any.

    Equal failures give equal text, because the text is logged when it changes.
    """
    if isinstance(error, BridgeError):
        return str(error)
    text = str(error).strip()
    line = _TOOK.sub("", text.partition("\n")[0])
    if reason := _REASON.search(text):
        line = ": ".join(filter(None, (_BODY.split(line)[0], *reason.groups())))
    return line[:REASON_MAX] or type(error).__name__


def _remedy(error: Exception) -> str:
    kind = type(error).__name__
    if kind in {"UnauthenticatedError", "PermissionDeniedError"} or "403 Forbidden" in str(error):
        return CREDENTIALS  # a refused listing is a generic error
    if any(place in str(error) for place in NO_CREDENTIALS):
        return "there are no credentials: set those of the store in the environment or in options"
    if isinstance(error, FileNotFoundError):
        return "make the bucket or container, or correct the URL"
    if "kind: Timeout" in str(error):
        return "check the network and the endpoint; on a slow line, raise timeout (30s) in options"
    if "error sending request" in str(error) or "dns error" in str(error):
        return "check the network and the endpoint"
    return ""
