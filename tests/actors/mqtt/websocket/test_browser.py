"""A page in a real browser with npm's `mqtt`, over WebSocket with TLS and without; and a page that may not connect."""

from __future__ import annotations

import base64
import hashlib
import json
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lexicast.actors.tls.development_certificates import DevelopmentAuthority

from ....support.certificates import authority
from ....support.mqtt_harness import HOST, WAIT_S, Served, unique
from ....support.websockets import served_by_both, ws_port, wss_port

BUNDLE = Path(sys.prefix) / "npm/node_modules/mqtt/dist/mqtt.min.js"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed (make debian-test)"),
    pytest.mark.skipif(not BUNDLE.exists(), reason="npm's mqtt is not installed (make npm-test)"),
]

# What it gets it tells the server that it came from.
PAGE = """<!doctype html><meta charset="utf-8"><script src="/mqtt.min.js"></script><script>
const asked = new URLSearchParams(location.search), topic = asked.get("topic"), each = 50;
const tell = (told) => fetch("/told", {method: "POST", body: JSON.stringify(told)});
const client = mqtt.connect(asked.get("url"), {
  protocolVersion: Number(asked.get("version")), reconnectPeriod: 0, clientId: asked.get("id"), connectTimeout: 20000});
const got = [];
let connected = false;
client.on("error", (error) => tell({error: String(error)}));
client.on("close", () => connected || tell({error: "closed before it was connected"}));
client.on("connect", async () => {
  connected = true;
  await client.subscribeAsync(topic + "/#", {qos: 2});
  for (const qos of [0, 1, 2])
    for (let n = 0; n < each; n++) await client.publishAsync(topic + "/" + qos, "é".repeat(n), {qos});
  await client.publishAsync(topic + "/large", new Uint8Array(300000).fill(7), {qos: 1});
});
client.on("message", async (name, payload, packet) => {
  got.push([name.slice(topic.length + 1), payload.length, packet.qos]);
  if (got.length <= 3 * each) return;
  await client.endAsync();
  tell({got});
});
client.stream?.on?.("error", () => 0);
setTimeout(() => tell({error: "too slow", got}), 50000);
</script>"""


class _Pages(ThreadingHTTPServer):
    """Serves the page, and takes what it tells."""

    def __init__(self) -> None:
        self.told: queue.Queue[dict[str, Any]] = queue.Queue()
        super().__init__((HOST, 0), _Request)


class _Request(BaseHTTPRequestHandler):
    server: _Pages

    def do_GET(self) -> None:
        """The page, or the bundle."""
        data = BUNDLE.read_bytes() if self.path == "/mqtt.min.js" else PAGE.encode()
        self._answer("text/javascript" if self.path.endswith(".js") else "text/html", data)

    def do_POST(self) -> None:
        """What the page tells."""
        self.server.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer("text/plain", b"")

    def _answer(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def pages() -> Iterator[_Pages]:
    server = _Pages()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(WAIT_S)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentAuthority:
    return authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def cluster(made: DevelopmentAuthority) -> Iterator[Served]:
    with served_by_both(made) as running:
        yield running


@contextmanager
def opened(url: str, folder: Path, made: DevelopmentAuthority) -> Iterator[None]:
    """A browser that looks at a page; it takes the server's certificate by its key."""
    certificate = x509.load_pem_x509_certificate(made.path("server", "crt").read_bytes())
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    pin = base64.b64encode(hashlib.sha256(key).digest()).decode()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += [f"--user-data-dir={folder / 'browser'}", f"--ignore-certificate-errors-spki-list={pin}"]
    assert BROWSER is not None
    with (folder / "browser.log").open("wb") as log:
        browser = subprocess.Popen([BROWSER, *options, url], stdout=log, stderr=log)
        try:
            yield
        finally:
            browser.terminate()
            browser.wait(WAIT_S)


def told_by(pages: _Pages, folder: Path, made: DevelopmentAuthority, host: str = HOST, **asked: str) -> dict[str, Any]:
    """What the page tells of its connection."""
    url = f"http://{host}:{pages.server_address[1]}/?{urlencode(asked)}"
    with opened(url, folder, made):
        return pages.told.get(timeout=WAIT_S)


@pytest.mark.parametrize(("version", "encrypted"), [("5", False), ("4", True)], ids=["5-ws", "3.1.1-wss"])
def test_a_page_publishes_and_gets(
    cluster: Served, pages: _Pages, made: DevelopmentAuthority, tmp_path: Path, version: str, encrypted: bool
) -> None:
    """All QoS, text beyond ASCII, and a message that is several frames to the broker."""
    scheme, port = ("wss", wss_port(cluster)) if encrypted else ("ws", ws_port(cluster))
    asked = {
        "url": f"{scheme}://{HOST}:{port}/mqtt",
        "version": version,
        "topic": unique("page/"),
        "id": unique("page"),
    }
    told = told_by(pages, tmp_path, made, **asked)
    assert "error" not in told, told
    expected = [[str(qos), 2 * size, qos] for qos in (0, 1, 2) for size in range(50)]
    assert told["got"] == [*expected, ["large", 300_000, 1]]


def test_a_page_of_another_origin_may_not_connect_until_it_is_named(
    pages: _Pages, made: DevelopmentAuthority, tmp_path: Path
) -> None:
    """localhost is another origin than 127.0.0.1."""
    origin = f"http://localhost:{pages.server_address[1]}"
    for named, may in (((), False), ((origin,), True)):
        with served_by_both(made, mqtt__ws_origins=named) as running:
            folder = tmp_path / str(may)
            folder.mkdir()
            asked = {"url": f"ws://{HOST}:{ws_port(running)}/mqtt", "version": "5", "topic": unique("o/"), "id": "o"}
            told = told_by(pages, folder, made, "localhost", **asked)
            assert ("error" not in told) == may, told
            assert ("WebSocket: origin" in running.broker().mqtt.status()["refused"]) == (not may)
