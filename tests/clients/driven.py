"""Client libraries of other languages: a program of ours with one of them takes commands, and tells what happens.

A line each, fields "name=value" between tabs, the first a word. One process may have all connections of the matrix.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..support.mqtt_harness import WAIT_S
from .connected import Asked, Connected, Said


class Program:
    """One that is driven."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
        )
        self._clients: list[DrivenClient] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *fields = line.rstrip("\n").split("\t")
            told = dict(field.partition("=")[::2] for field in fields)
            self._clients[int(told["client"])].told(word, told)

    def say(self, word: str, **fields: object) -> None:
        """A command."""
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join([word, *[f"{name}={value}" for name, value in fields.items()]]) + "\n")
        self._process.stdin.flush()

    def connect(self, asked: Asked) -> DrivenClient:
        """A client that is connected."""
        client = DrivenClient(self, len(self._clients))
        self._clients.append(client)
        client.open(asked)
        return client

    def connect_alone(self, asked: Asked) -> DrivenClient:
        """As `connect`, for the only client: with it the program ends."""
        try:
            client = self.connect(asked)
        except BaseException:
            self.end()
            raise
        client.when_closed = self.end
        return client

    def end(self) -> None:
        """It ends by the end of its commands."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(WAIT_S)
        finally:
            self._process.kill()
            self._thread.join(WAIT_S)
            self._process.stdout.close()


class DrivenClient(Connected):
    """See the module's docstring."""

    def __init__(self, program: Program, number: int) -> None:
        super().__init__()
        self._program, self._number = program, number
        self._told: queue.Queue[tuple[str, dict[str, str]]] = queue.Queue()
        self.when_closed: Callable[[], None] | None = None
        self._open = 0
        self._aliases: set[int] = set()

    def told(self, word: str, fields: dict[str, str]) -> None:
        """It tells something, in a thread of its own."""
        if word == "message":
            self._arrived.put(_said(fields))
        else:
            self._told.put((word, fields))

    def open(self, asked: Asked) -> None:
        """Connect."""
        will, words = asked.will or ("", "")
        files = {"ca": asked.ca, "certificate": asked.certificate, "key": asked.key}
        user = {"user": asked.user, "password": asked.password}
        session = {"expiry": asked.expiry_s, "will": will, "words": words, "aliases": asked.aliases}
        self._say("open", url=asked.url, id=asked.client_id, version=asked.version, **files, **user, **session)
        self.session_present = self._until("opened")["session"] == "1"

    def _say(self, word: str, **fields: object) -> None:
        self._program.say(word, client=self._number, **fields)

    def _until(self, wanted: str) -> dict[str, str]:
        """What it tells with this word."""
        while True:
            word, told = self._told.get(timeout=WAIT_S)
            assert word != "failed", told
            self._open -= word == "published"
            if word == wanted:
                return told

    def subscribe(self, name: str, qos: int, user: tuple[str, str] | None = None) -> None:
        self._say("subscribe", topic=name, qos=qos, user=":".join(user or ()))
        assert self._until("subscribed")["qos"] == str(qos)

    def publish(self, publications: Sequence[Said]) -> None:
        for each in publications:
            options: dict[str, Any] = {"qos": each.qos, "retain": int(each.retain), "alias": each.alias}
            options["known"] = int(each.alias in self._aliases)  # the broker has been told what the alias stands for
            self._aliases |= {each.alias} - {0}
            options |= {"response": each.response, "correlation": each.correlation}
            self._open += 1
            self._say(
                "publish", topic=each.topic, payload=each.payload.hex(), user=":".join(each.user or ()), **options
            )

    def published(self) -> None:
        while self._open:
            self._until("published")

    def close(self) -> None:
        self._say("close")
        try:
            self._until("closed")
        finally:
            if self.when_closed is not None:
                self.when_closed()


def _said(told: Mapping[str, str]) -> Said:
    name, _, value = told.get("user", "").partition(":")
    user = (name, value) if name else None
    payload = bytes.fromhex(told["payload"])
    answer = (told.get("response", ""), told.get("correlation", ""))
    return Said(told["topic"], payload, int(told["qos"]), told["retain"] == "1", user, *answer)
