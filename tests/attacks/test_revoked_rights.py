"""CVEs of other brokers about rights that were never given, or are taken while somebody uses them."""

from __future__ import annotations

import pytest

from lexicast.cluster.security.passwords import SHA512, hash_password, with_user

from ..support.harness import eventually
from ..support.mqtt_harness import Raw, close_clients, served

NOT_AUTHORIZED = 0x87
USERS = b""
for user in ("ada", "bob"):
    USERS = with_user(USERS, user, hash_password(f"{user}'s".encode(), b"s" * 12, SHA512).text())


@pytest.mark.cve("CVE-2018-12550")
async def test_a_broker_with_a_file_without_rules_serves_nobody_anything() -> None:
    with served(passwords=USERS, rules=b"# no rule\n") as running:
        client = await Raw.connect(running.port, user="ada", password=b"ada's")
        assert await client.subscribe("#", "a/b") == [NOT_AUTHORIZED, NOT_AUTHORIZED]
        assert await client.publish("a/b", b"x", qos=1) == NOT_AUTHORIZED
        await close_clients()


@pytest.mark.cve("CVE-2021-34434", "CVE-2018-12546")
async def test_what_may_not_be_read_or_written_any_more_is_not_delivered() -> None:
    """Neither to a session that was away when its right was taken, nor what was retained of who has lost his."""
    rules = b"user ada\ntopic readwrite #\nuser bob\ntopic readwrite #\n"
    fewer = b"user ada\ntopic readwrite open/#\nuser bob\ntopic readwrite #\n"
    with served(passwords=USERS, rules=rules) as running:
        ada = await Raw.connect(running.port, "a", user="ada", password=b"ada's", clean=False, _17=600)
        await ada.subscribe("secret/#", "open/#", qos=1)
        await ada.publish("secret/kept", b"of ada", qos=1, retain=True)
        await ada.messages(1)
        await ada.disconnect(**{"_17": 600})
        running.run(running.cluster.coordination.give_security({"passwords": USERS, "rules": fewer}))
        await eventually(lambda: running.broker()._security.files.rules == fewer)
        bob = await Raw.connect(running.port, user="bob", password=b"bob's")
        await bob.subscribe("secret/#")
        await bob.publish("secret/new", b"1", qos=1)
        await bob.publish("open/new", b"2", qos=1)
        assert [m.topic for m in await bob.messages(1)] == ["secret/new"]
        ada = await Raw.connect(running.port, "a", user="ada", password=b"ada's", clean=False, _17=600)
        assert ada.connack.session_present
        assert [m.topic for m in await ada.messages(1)] == ["open/new"]
        await ada.nothing(bob, "open/last")
        await close_clients()
