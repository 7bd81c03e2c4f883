"""What a console answers about one topic family: what was learned, in words, and a message before and after."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any, Final

from aiohttp import web

from lexicast.cluster.errors import UsageError
from lexicast.compression.dictionary import NEVER_US, Dictionary

from ..client.client import Client
from ..client.messages import Message
from ..sampling.dictionary_words import description, summary
from .answers import VISITOR, json_answer
from .message_json import message_json
from .visitors import NotLetInError

LINES_MAX: Final = 400
LINE_LETTERS_MAX: Final = 400
AFTER_BYTES_MAX: Final = 2_048
# A message of the family is looked for so long.
EXAMPLE_S: Final = 2.0


class FamilyRequests:
    """See the module's docstring. `client`: one that is told of all dictionaries."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def routes(self) -> list[web.AbstractRouteDef]:
        """What is served."""
        return [web.get("/api/v1/family", self.family)]

    async def family(self, request: web.Request) -> web.Response:
        """One family, for whoever may read all of it."""
        name, visitor = request.query.get("name", ""), request[VISITOR]
        if not visitor.rights.may_have_dictionaries(name.encode(errors="replace")):
            raise NotLetInError(403, "what was learned of a family holds pieces of it, and you may not read all of it")
        found = {each.family.decode(errors="replace"): each for each in self._client.dictionaries()}
        dictionary = found.get(name)
        if dictionary is None:
            raise UsageError(f"nothing was learned of a family {name!r} yet")
        example = await self._example(name)
        if example is not None and not visitor.rights.may_read_past(example.topic.encode()):
            example = None
        # A model of many fields takes its time, which others need not wait for.
        return json_answer(await asyncio.to_thread(_told, dictionary, example))

    async def _example(self, family: str) -> Message | None:
        """The newest message of one of its topics."""
        messages = self._client.history(family, last=1, limit=1)
        try:
            async with asyncio.timeout(EXAMPLE_S):
                async for message in messages:
                    return message
        except TimeoutError:
            pass
        finally:
            await messages.aclose()
        return None


def _told(dictionary: Dictionary, example: Message | None) -> dict[str, Any]:
    lines = [line[:LINE_LETTERS_MAX] for line in description(dictionary)]
    packed = len(dictionary.pack())
    return {
        "name": dictionary.family.decode(errors="replace"),
        "summary": summary(dictionary),
        "codec": dictionary.codec,
        "id": f"{dictionary.id:016x}",
        "packed_bytes": packed,
        "samples": dictionary.samples,
        "created": dictionary.created_us / 1_000_000,
        "expires": None if dictionary.expires_us == NEVER_US else dictionary.expires_us / 1_000_000,
        "age_s": round(time.time() - dictionary.created_us / 1_000_000, 1),
        "words": lines[:LINES_MAX],
        "words_left_out": max(0, len(lines) - LINES_MAX),
        "example": None if example is None else _before_and_after(dictionary, example),
    }


def _before_and_after(dictionary: Dictionary, example: Message) -> dict[str, Any]:
    """A message as it is, and as it crosses a link that has the dictionary (behind a byte that says so)."""
    after = dictionary.build().compress(example.payload)
    return {
        "before": message_json(example),
        "before_bytes": len(example.payload),
        "after_bytes": len(after) + 1,
        "after_base64": base64.b64encode(after[:AFTER_BYTES_MAX]).decode(),
    }
