"""The blocking client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import lexicast
from lexicast import sync
from lexicast.cluster.errors import UnavailableError
from lexicast.testing import MemoryBroker


class BrokerThread:
    """A broker in memory in an event loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.broker, self.address = asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(10)

    async def _start(self) -> tuple[MemoryBroker, str]:
        broker = MemoryBroker(4)
        return broker, "link:" + await broker.listen("tcp:127.0.0.1:0")

    def cut(self) -> None:
        self.loop.call_soon_threadsafe(self.broker.cut)

    def stop(self) -> None:
        async def end() -> None:
            self.broker.close()
            await asyncio.sleep(0)  # lets the transports close

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[BrokerThread]:
    broker = BrokerThread()
    yield broker
    broker.stop()


@pytest.fixture
def bus(served: BrokerThread) -> Iterator[sync.SyncClient]:
    with sync.connect(served.address, key=served.broker.key, client_id="me") as bus:
        yield bus


def test_publish_subscribe_and_history(bus: sync.SyncClient) -> None:
    with bus.subscribe("t/+") as subscription:
        position = bus.publish("t/1", "one")
        positions = bus.publish_many([("t/1", b"%d" % i) for i in range(3_000)])
        first = next(subscription)
        rest = [next(subscription) for _ in range(3_000)]
    assert (first.position, first.payload, first.publisher) == (position, b"one", "me")
    assert [m.position for m in rest] == positions
    assert [m.payload for m in bus.history("t/1", since=position, limit=2_500)] == [b"%d" % i for i in range(2_500)]
    assert [m.payload for m in bus.history("t/+", last=2)] == [b"2998", b"2999"]
    assert (bus.count("t/1"), bus.count("t/1", since=position), bus.count("t/2")) == (3_001, 3_000, 0)
    assert bus.status()["broker"] == "memory"


def test_cursor_follows_what_the_user_was_given(bus: sync.SyncClient) -> None:
    bus.publish_many([(f"t/{i % 5}", b"%d" % i) for i in range(50)])
    with bus.subscribe("t/#", since="beginning") as subscription:
        first = {next(subscription).payload for _ in range(17)}
        cursor = subscription.cursor
    with bus.subscribe("t/#", since=cursor) as subscription:
        rest = {next(subscription).payload for _ in range(33)}
    assert first.isdisjoint(rest)
    assert len(first | rest) == 50


def test_iteration_survives_a_broken_link(bus: sync.SyncClient, served: BrokerThread) -> None:
    with bus.subscribe("t") as subscription:
        for i in range(5):
            bus.publish("t", b"%d" % i)
            served.cut()
            assert next(subscription).payload == b"%d" % i


def test_end_of_iteration(bus: sync.SyncClient) -> None:
    bus.publish("t", b"1")
    assert [m.payload for m in bus.subscribe("t", since="beginning", until="now")] == [b"1"]


def test_errors_and_use_after_close(served: BrokerThread) -> None:
    with sync.connect(served.address, key=served.broker.key) as bus:
        with pytest.raises(lexicast.LexicastError):
            bus.publish("a/+", b"")
        subscription = bus.subscribe("t")
    bus.close()
    with pytest.raises(UnavailableError):
        bus.publish("t", b"")
    with pytest.raises(UnavailableError):
        next(subscription)
    subscription.close()
    with pytest.raises(UnavailableError):
        sync.connect("link:unix:/nonexistent", key=b"k")


async def test_inside_a_running_loop_as_in_a_notebook(served: BrokerThread) -> None:
    with sync.connect(served.address, key=served.broker.key) as bus, bus.subscribe("t") as subscription:
        bus.publish("t", "x")
        assert next(subscription).payload == b"x"
    with pytest.raises(UnavailableError, match="closed"):
        bus.publish("t", "y")


def test_several_threads_share_a_client(bus: sync.SyncClient) -> None:
    def work(name: str) -> None:
        for i in range(50):
            bus.publish(name, b"%d" % i)

    threads = [threading.Thread(target=work, args=(f"w/{k}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        assert [m.payload for m in bus.history(f"w/{k}")] == [b"%d" % i for i in range(50)]


SCRIPT = """
import sys
from lexicast import sync
with sync.connect(sys.argv[1], key=bytes.fromhex(sys.argv[2])) as bus:
    try:
        with bus.subscribe("never") as subscription:
            print("waiting", flush=True)
            next(subscription)
    except KeyboardInterrupt:
        print(bus.publish("t", b"still usable").offset, flush=True)
"""


def test_ctrl_c_ends_a_wait_and_leaves_the_client_usable(served: BrokerThread) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, served.address, served.broker.key.hex()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("1\n", "", 0)
