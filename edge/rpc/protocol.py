"""Protocol of a socket: encoding, version and size limits of its requests and answers.  No I/O.

A message is one datagram, or one frame of ZeroMQ: a msgpack map with "op".  So its length is known, and
checked, before anything of it is decoded.  Each request has "version".  Any may be answered by `failed`.

Rule for change: further ops, and further keys with defaults, are added freely.  Anything else raises the
version of that protocol, which the server checks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec

from edge.errors import ControlError, InvalidArgument, Refused

M = TypeVar("M", bound="Message")

# the decoder raises all of these
_DECODE_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class Message(msgspec.Struct, tag_field="op", tag=str.lower, frozen=True):
    """Base of all messages."""


class Done(Message, frozen=True):
    """Success, without further data."""


class Failed(Message, frozen=True):
    """Failure, with its reason and a remedy."""

    error: str
    hint: str = ""


class MalformedRequest(ControlError):
    """A request that cannot be decoded; the peer may be sent the text. `id`: of the request, or 0."""

    def __init__(self, message: str, number: int = 0, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.id = number


class _Head(msgspec.Struct):
    version: int = 0


class _Numbered(msgspec.Struct):
    id: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_numbered = msgspec.msgpack.Decoder(_Numbered).decode


class Protocol:
    """Messages of one kind of server, for both sides.

    `requests`, `answers`: union types of Messages; an answer with `error` is negative. `answer_max_bytes`: of
    a datagram; ZeroMQ needs none.
    """

    def __init__(
        self,
        server: str,
        version: int,
        requests: Any,
        answers: Any,
        *,
        request_max_bytes: int,
        answer_max_bytes: int = 0,
    ) -> None:
        self.server = server
        self.version = version
        self.request_max_bytes = request_max_bytes
        self.answer_max_bytes = answer_max_bytes
        self._decode_request = msgspec.msgpack.Decoder(requests).decode
        self._answers = answers

    def decode_request(self, data: bytes) -> Any:
        """Decode a request. Raises MalformedRequest."""
        if len(data) > self.request_max_bytes:
            raise MalformedRequest(f"a request is above the limit of {self.request_max_bytes} bytes")
        try:
            version = _decode_head(data).version
            if version == self.version:
                return self._decode_request(data)
        except _DECODE_ERRORS as error:
            raise MalformedRequest(f"no request: {error}", _id_of(data)) from error
        text = f"protocol version {version}; this {self.server} has {self.version}"
        hint = f"use a client and a {self.server} of the same version of Brim"
        raise MalformedRequest(text, _id_of(data), hint=hint)

    @cached_property
    def _decode_answer(self) -> Callable[[bytes], Any]:
        """Decoder of answers, which a server does not need."""
        return msgspec.msgpack.Decoder(self._answers).decode

    def decode_answer(self, data: bytes) -> Any:
        """Decode an answer. Raises ControlError."""
        try:
            return self._decode_answer(data)
        except _DECODE_ERRORS as error:
            raise ControlError(f"no answer: {error}; use one version of Brim on both sides") from error


def encode(message: object) -> bytes:
    """The bytes of a message. Raises InvalidArgument: a number needs more than 64 bits, or a text, such as an
    argument of a command, is not UTF-8.
    """
    try:
        return _encode(message)
    except OverflowError as error:
        text = "a number needs more than 64 bits (allowed: -2^63 to 2^64-1)"
        raise InvalidArgument(text, hint="choose another number") from error
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{error.object[:64]!a} is not UTF-8", hint="write it in UTF-8") from error


def expect(answer: Message, kind: type[M]) -> M:
    """Return an answer of this kind. Raises Refused: it is negative; ControlError: it is of another kind."""
    if isinstance(answer, kind):
        return answer
    if (error := getattr(answer, "error", None)) is not None:
        raise Refused(error, hint=getattr(answer, "hint", ""))
    raise ControlError(f"{type(answer).__name__} in answer, where {kind.__name__} was asked for")


def _id_of(data: bytes) -> int:
    try:
        number = _decode_numbered(data).id
    except _DECODE_ERRORS:
        return 0
    return number if 0 <= number < 1 << 63 else 0
