"""What a sampling broker learns where there are rules, and of whom: one publisher's share is capped."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.sampling.family import SENT_BYTES_MAX, SENT_MAX, SampledFamily, SentMessages
from lexicast.actors.sampling.server import SamplingServer
from lexicast.compression.maintenance import Maintenance
from lexicast.compression.predict import Predict

from ...support.harness import eventually
from ...support.sampling_harness import sampled

KNOBS = {"compression__sampling_cpu_percent": 1_000, "cluster__groups": 4}


def reading(device: int, number: int) -> bytes:
    draw = random.Random(device * 1_000 + number)
    owner = f"owner-{device:03}-{random.Random(device).randrange(10**8):08}"
    fields = {"owner": owner, "state": draw.choice(["running", "idle", "failed"]), "temperature": draw.randrange(400)}
    return json.dumps(fields | {"unit": "celsius", "firmware": "4.17.2"}).encode()


class TestSentMessages:
    def test_one_publisher_has_its_share_where_there_are_others(self) -> None:
        sent = SentMessages(3)
        for number in range(100):
            for device in range(4):
                assert sent.add(f"d-{device}", reading(device, number))
        taken = sum(sent.add("flood", b"x" * 100) for _ in range(5_000))
        assert taken <= SENT_MAX // 3 + 1
        shared = sent.shared()
        assert shared is not None
        assert b'"celsius", "firmware": "4.17.2"' in b"".join(shared.packed(4_096).split(b"\0"))

    def test_alone_it_has_all(self) -> None:
        sent = SentMessages(3)
        assert all(sent.add("only", b"x") for _ in range(5_000))
        assert sent.shared() is None

    @given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, SENT_BYTES_MAX // 3)), max_size=40))
    def test_it_is_bounded(self, messages: list[tuple[str, int]]) -> None:
        sent = SentMessages(3)
        for publisher, size in messages:
            sent.add(publisher, bytes(size))
            assert sent._bytes == sum(len(each.message) for each in sent._sent) <= SENT_BYTES_MAX
            assert sum(sent._counts.values()) == len(sent._sent) <= SENT_MAX


class TestFamilies:
    def test_one_publishers_many_families_push_out_none_of_others(self) -> None:
        server = SamplingServer.__new__(SamplingServer)
        server._kept = OrderedDict()
        server._config = type("Knobs", (), {"families_max": 20})()
        for number in range(10):
            server._kept[b"quiet/%d" % number] = SampledFamily(Predict(), 0, f"d-{number}")
        for number in range(1_000):
            server._kept[b"flood/%d" % number] = SampledFamily(Predict(), 0, "flood")
            if len(server._kept) > 20:
                server._give_up_one()
        assert sum(name.startswith(b"quiet") for name in server._kept) == 10
        assert len(server._kept) == 20


@pytest.mark.parametrize(("devices", "publishers"), [(6, 3), (2, 0)])
async def test_a_dictionary_says_how_many_have_sent_what_is_in_it(
    tmp_path: Path, devices: int, publishers: int
) -> None:
    """With too few publishers everything enters: then it is for those alone who may read all of the family."""
    async with sampled(tmp_path, **KNOBS) as there, there.sampler(make=first_dictionary, rules=True) as server:
        clients = [there.client(f"device-{device}") for device in range(devices)]
        for client in clients:
            await client.open()
        for number in range(240 // devices):
            for device, client in enumerate(clients):
                await client.publish(f"readings/{1_000 + device}/state", reading(device, number))
        await eventually(lambda: server.published > 0)
        await eventually(lambda: there.dictionary(b"readings/1000/state") is not None)
        made = there.dictionary(b"readings/1000/state")
        assert made is not None
        assert made.publishers == publishers
        assert (b"owner-000-" in made.content) is (publishers == 0)
        for client in clients:
            await client.close()


def first_dictionary() -> Maintenance:
    """Its first one when all devices have sent something; dictionaries of bytes, which can be looked into."""
    return Predict(first=70, fields=False)
