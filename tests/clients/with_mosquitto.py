"""mosquitto_sub and mosquitto_pub: one process subscribes, one publishes what is alike in a row."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterable, Sequence
from itertools import groupby

from ..support.mqtt_harness import HOST, WAIT_S
from .connected import Asked, Connected, Said

VERSIONS = {4: "311", 5: "5"}
# Topic, QoS, retain, response topic, correlation data, user properties, payload in hexadecimal.
FORMAT = "> %t|%q|%r|%R|%D|%P|%x"


class MosquittoConnected(Connected):
    """A connection is one of mosquitto_sub's: it begins with the subscription, of which there is one."""

    subscribes_again = True

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked = asked
        self.wants_will = asked.version == 5  # DISCONNECT 0x04 after SIGTERM
        self._common = ["-h", HOST, "-p", str(asked.port), "-V", VERSIONS[asked.version]]
        for option, value in (("--cafile", asked.ca), ("--cert", asked.certificate), ("--key", asked.key)):
            self._common += [option, value] if value else []
        self._common += ["-u", asked.user, "-P", asked.password] if asked.user else []
        self._subscriber: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._granted: queue.Queue[str] = queue.Queue()
        self._publishers: list[subprocess.Popen[bytes]] = []

    def subscribe(self, name: str, qos: int, user: tuple[str, str] | None = None) -> None:
        assert self._subscriber is None, "one subscription a process"
        asked = self._asked
        options = ["-d", "-F", FORMAT, "-i", asked.client_id, "-t", name, "-q", str(qos)]
        options += self._session()
        if asked.will:
            options += ["--will-topic", asked.will[0], "--will-payload", asked.will[1], "--will-qos", "1"]
        options += ["-D", "subscribe", "user-property", *user] if user else []
        options += ["-D", "connect", "topic-alias-maximum", str(asked.aliases)] if asked.aliases else []
        command = ["stdbuf", "-oL", "mosquitto_sub", *self._common, *options]
        self._subscriber = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, args=[self._subscriber.stdout], daemon=True)
        self._reader.start()
        granted = self._granted.get(timeout=WAIT_S)
        assert granted.endswith(f": {qos}"), granted

    def _session(self) -> list[str]:
        asked = self._asked
        if not asked.keeps:
            return []
        return ["-c", *(["-x", str(asked.expiry_s)] if asked.version == 5 else [])]

    def _read(self, lines: Iterable[str]) -> None:
        for line in map(str.rstrip, lines):
            if line.startswith("Subscribed "):
                self._granted.put(line)
            elif line.startswith("> "):
                self._arrived.put(_said(line[2:]))

    def publish(self, publications: Sequence[Said]) -> None:
        for said, alike in groupby(publications, lambda each: each._replace(payload=b"")):
            payloads = [each.payload for each in alike]
            as_lines = len(payloads) > 1 and not any(b"\n" in payload for payload in payloads)
            for data in [b"\n".join([*payloads, b""])] if as_lines else payloads:
                if self._publishers:  # in order
                    assert self._publishers[-1].wait(WAIT_S) == 0
                self._publishers.append(self._publisher(said, "-l" if as_lines else "-s", data))

    def _publisher(self, said: Said, kind: str, data: bytes) -> subprocess.Popen[bytes]:
        options = ["-t", said.topic, "-q", str(said.qos), kind, *(["-r"] if said.retain else [])]
        options += ["-i", f"{self._asked.client_id}-publisher", *self._session()]
        for name, value in (("response-topic", said.response), ("correlation-data", said.correlation)):
            options += ["-D", "publish", name, value] if value else []
        options += ["-D", "publish", "user-property", *said.user] if said.user else []
        options += ["-D", "publish", "topic-alias", str(said.alias)] if said.alias else []
        publisher = subprocess.Popen(["mosquitto_pub", *self._common, *options], stdin=subprocess.PIPE)
        assert publisher.stdin is not None
        publisher.stdin.write(data)
        publisher.stdin.close()
        return publisher

    def published(self) -> None:
        for each in self._publishers:
            assert each.wait(WAIT_S) == 0
        self._publishers.clear()

    def close(self) -> None:
        if self._subscriber is not None and self._reader is not None:
            assert self._subscriber.stdout is not None
            self._subscriber.terminate()
            try:
                self._subscriber.wait(WAIT_S)
            finally:
                self._subscriber.kill()
                self._reader.join(WAIT_S)
                self._subscriber.stdout.close()


def _said(line: str) -> Said:
    topic, qos, retain, response, correlation, user, payload = line.split("|")
    name, _, value = user.partition(":")
    pair = (name, value) if name else None
    return Said(topic, bytes.fromhex(payload), int(qos), retain == "1", pair, response, correlation)
