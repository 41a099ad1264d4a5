"""The part of HTTP/1.1 that the service needs: requests with a length, answers with one, connections that stay open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

#: The most bytes of a request's line and headers.
HEAD_BYTES = 1 << 14
#: The most bytes of a request's body.
BODY_BYTES = 1 << 16
#: A connection without a request is closed after this many seconds, and a request has this many to arrive whole.
_IDLE_S = 30.0
_ARRIVAL_S = 5.0


class HttpError(Exception):
    """A request that cannot be read or taken: the status and a line of why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Request:
    """Names of headers are in lower case. keeps_open: whether the connection may take another request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    keeps_open: bool


@dataclass(frozen=True)
class Response:
    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self, *, keeps_open: bool) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            f"Connection: {'keep-alive' if keeps_open else 'close'}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def json_response(status: HTTPStatus, facts: Mapping[str, object], **headers: str) -> Response:
    """``facts`` as JSON; an underscore in the name of a header stands for a hyphen."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, json.dumps(facts).encode(), headers=names)


async def first_byte(reader: asyncio.StreamReader) -> bytes:
    """The first byte of a connection's next request; empty where there is none any more."""
    try:
        async with asyncio.timeout(_IDLE_S):
            return await reader.read(1)
    except (TimeoutError, ConnectionError):
        return b""


async def read_request(first: bytes, reader: asyncio.StreamReader) -> Request | None:
    """The request that begins with ``first``; None where the caller goes before it is whole. Raises HttpError."""
    try:
        async with asyncio.timeout(_ARRIVAL_S):
            head = first + await reader.readuntil(b"\r\n\r\n")
            method, path, version, headers = _parsed(head)
            body = await reader.readexactly(_length(headers))
            keeps_open = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
            return Request(method, path, headers, body, keeps_open)
    except asyncio.LimitOverrunError:
        raise HttpError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"expected at most {HEAD_BYTES} bytes of headers"
        ) from None
    except TimeoutError:
        raise HttpError(HTTPStatus.REQUEST_TIMEOUT, f"expected a whole request within {_ARRIVAL_S:g} s") from None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _parsed(head: bytes) -> tuple[str, str, str, dict[str, str]]:
    """Method, path, version and headers."""
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"expected METHOD PATH HTTP/1.1, got {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name == "content-length" and name in headers):
            raise HttpError(HTTPStatus.BAD_REQUEST, f"expected NAME: VALUE, and one length, got {line[:80]!r}")
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return words[0], words[1], words[2], headers


def _length(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise HttpError(HTTPStatus.LENGTH_REQUIRED, "expected Content-Length, got Transfer-Encoding")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"expected Content-Length to be a number, got {text[:80]!r}")
    if len(text) > 9 or int(text) > BODY_BYTES:
        reason = f"expected at most {BODY_BYTES} bytes of body, got {text[:80]}"
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
    return int(text)
