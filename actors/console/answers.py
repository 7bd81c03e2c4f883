"""What a console answers with: JSON of a bounded size, errors in one line, and headers that let pages do little else.

Every list is a page: `limit` rows at the most, and fewer where these would be more than PAGE_BYTES; `next` is what to
ask for `after` to go on, null at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
from aiohttp import web

from lexicast.cluster.errors import (
    DictionaryError,
    LexicastError,
    LimitError,
    PublishRefusedError,
    UnavailableError,
    UsageError,
)

from .visitors import NotLetInError, Visitor

ANSWER_BYTES_MAX: Final = 1_048_576
PAGE_BYTES: Final = 512 * 1024
LIMIT: Final = 100
LIMIT_MAX: Final = 1_000
# What was begun to be sent has come by then.
BODY_S: Final = 20.0

# A page may load and ask nothing but this console, and nobody else may show it in a frame.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
VISITOR: Final = web.RequestKey("visitor", Visitor)

_ENCODER: Final = msgspec.json.Encoder()


def json_answer(value: Any, status: int = 200) -> web.Response:
    """`value` as JSON; one that would be too large is a defect, and an error."""
    body = _ENCODER.encode(value)
    if len(body) > ANSWER_BYTES_MAX:
        body, status = _ENCODER.encode({"error": "the answer would be too large: ask for less (limit)"}), 500
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def page_of(rows: Iterable[Any], limit: int, key: Callable[[Any], Any]) -> dict[str, Any]:
    """{"rows", "next"}: the first `limit` rows, fewer where they are large; `key(row)`: what to ask for `after` it."""
    taken: list[Any] = []
    left = PAGE_BYTES
    for row in rows:
        left -= len(_ENCODER.encode(row))
        if taken and (left < 0 or len(taken) >= limit):
            return {"rows": taken, "next": key(taken[-1])}
        taken.append(row)
    return {"rows": taken, "next": None}


def limit_of(request: web.Request, default: int = LIMIT, most: int = LIMIT_MAX) -> int:
    """The parameter `limit`. Raises UsageError."""
    return number_of(request, "limit", default, 1, most)


def number_of(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number among the parameters. Raises UsageError."""
    text = request.query.get(name, "")
    if not text:
        return default
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise UsageError(f"{name}={text!r}: give a number from {low:,} to {high:,}")
    return number


async def body_of(request: web.Request, **kinds: type) -> dict[str, Any]:
    """The JSON object that was sent, whose members are all of `kinds`. Raises UsageError.

    Only what says that it is JSON is taken: no form of another site can say so.
    """
    if request.content_type != "application/json":
        raise UsageError("send JSON, with Content-Type: application/json")
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.read()
    except TimeoutError:
        raise NotLetInError(408, f"the body has not come within {BODY_S:.0f} s") from None
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise UsageError(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("send an object")
    for name, value in found.items():
        if type(value) is not kinds.get(name):
            known = ", ".join([f"{each} ({kind.__name__})" for each, kind in kinds.items()])
            raise UsageError(f"{name!r}: an object has {known}")
    return found


def status_of(error: LexicastError) -> int:
    """Which status of HTTP says what an error is."""
    if isinstance(error, LimitError):
        return 429
    if isinstance(error, UsageError):
        return 400
    if isinstance(error, PublishRefusedError):
        return 507
    if isinstance(error, UnavailableError):
        return 503
    return 422 if isinstance(error, DictionaryError) else 500


def refused(status: int, why: str) -> web.Response:
    """An error as an answer."""
    answer = json_answer({"error": why}, status)
    if status == 401:
        # No `Basic` for pages: the browser would ask in a window of its own, and remember.
        answer.headers["WWW-Authenticate"] = 'Bearer realm="lexicast"'
    return answer


def operators_only(handler: Handler) -> Handler:
    """For operators alone."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if not request[VISITOR].is_operator:
            raise NotLetInError(403, "operators alone see that: users whom http.operators names")
        return await handler(request)

    return handle
