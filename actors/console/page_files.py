"""The files of the page, as they lie in the package: read once, packed once, known to browsers by what is in them."""

from __future__ import annotations

import gzip
from hashlib import blake2b
from importlib import resources
from typing import Final, NamedTuple

from aiohttp import web

TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
INDEX: Final = "index.html"


class _File(NamedTuple):
    body: bytes
    packed: bytes
    content_type: str
    tag: str


class PageFiles:
    """See the module's docstring."""

    def __init__(self) -> None:
        folder = resources.files("lexicast.actors.console").joinpath("page")
        self._files: dict[str, _File] = {}
        for entry in folder.iterdir():
            ending = entry.name[entry.name.rfind(".") :]
            if ending in TYPES:
                body = entry.read_bytes()
                tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
                self._files[f"/{entry.name}"] = _File(body, gzip.compress(body, 9, mtime=0), TYPES[ending], tag)
        if f"/{INDEX}" in self._files:
            self._files["/"] = self._files[f"/{INDEX}"]

    def has(self, path: str) -> bool:
        """Whether the page has such a file."""
        return path in self._files

    def routes(self) -> list[web.AbstractRouteDef]:
        """What is served."""
        return [web.get(path, self._file) for path in self._files]

    async def _file(self, request: web.Request) -> web.Response:
        found = self._files[request.path]
        headers = {"ETag": found.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == found.tag:
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return web.Response(body=found.packed, content_type=found.content_type, charset="utf-8", headers=headers)
        return web.Response(body=found.body, content_type=found.content_type, charset="utf-8", headers=headers)
