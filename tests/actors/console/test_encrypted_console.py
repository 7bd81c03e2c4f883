"""A console over TLS: by the files of [tls], with users whom certificates name; plain HTTP gets nothing there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from lexicast.actors.tls.development_certificates import DevelopmentAuthority

from ...support.certificates import authority, client_context, server_knobs
from ...support.console import console
from ...support.harness import Cluster


@pytest.fixture
async def base(tmp_path: Path) -> AsyncIterator[str]:
    """The address of an encrypted console, at which ada's certificate makes an operator."""
    made = authority(tmp_path / "tls", "ada", "eve")
    knobs = server_knobs(made, "optional", tls__user_from="cn", http__tls="always", http__operators=("ada",))
    knobs["mqtt__tls_port"] = 0  # the broker's is another test's
    async with Cluster(tmp_path) as cluster:
        await cluster.start_coordinator()
        await cluster.start_broker("broker-0")
        async with console(cluster, **knobs) as server:
            assert server.http.status()["encrypted"] is True
            yield f"https://127.0.0.1:{server.http.port}"


@pytest.mark.parametrize(("name", "status"), [("ada", 200), ("eve", 403), ("", 401)])
async def test_a_certificate_names_the_user(base: str, tmp_path: Path, name: str, status: int) -> None:
    made = authority_of(tmp_path)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{base}/api/v1/status", ssl=client_context(made, name)) as answer:
            assert answer.status == status, await answer.text()
        async with session.get(f"{base}/", ssl=client_context(made, name)) as answer:
            assert (await answer.text()).startswith("<!doctype html>")


async def test_who_does_not_shake_hands_gets_nothing(base: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(base.replace("https", "http") + "/health/live", timeout=aiohttp.ClientTimeout(20))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get(f"{base}/health/live", ssl=ssl.create_default_context())


async def test_many_messages_are_streamed_through_it(base: str, tmp_path: Path) -> None:
    """What is written beyond a socket's buffers goes out as it drains."""
    context = client_context(authority_of(tmp_path), "ada")
    async with aiohttp.ClientSession() as session:
        url = f"{base}/api/v1/stream?filter=s"
        async with session.get(url, ssl=context) as stream:
            await stream.content.readuntil(b"it begins here\n\n")
            body = {"topic": "s", "payload": "x" * 15_000}
            for _ in range(5):
                async with session.post(f"{base}/api/v1/publish", json=body, ssl=context) as answer:
                    assert answer.status == 200, await answer.text()
            async with asyncio.timeout(20):
                heard = b""
                while heard.count(b'"topic"') < 5:
                    heard += await stream.content.readany()


def authority_of(folder: Path) -> DevelopmentAuthority:
    """The one that `base` made."""
    return DevelopmentAuthority(folder / "tls").open()
