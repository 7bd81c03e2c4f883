"""Loads with a clock: at a steady rate, and as fast as a window allows.

A message's latency is the time from just before its bytes go into the publisher's socket to just after the subscriber
read them. Times are kept a write and a read, not a message, and spread over the messages afterwards.
"""

from __future__ import annotations

import ctypes
import select
import socket
import time
from array import array
from dataclasses import dataclass, field

import numpy as np

from . import loadgen
from .loadgen import BlockPublisher, DeliveryError, LoadPublisher, LoadSubscriber, OpenLoad, Receiver, RunResult

TICK_NS = 100_000
"""Above 10,000 messages a second, what is due within a tick goes out in one write: a process that wakes for each
message would burn the cores that it shares with the target."""

_PR_SET_TIMERSLACK = 29


def sharpen_timers() -> None:
    """Lets this process wake 1 ns instead of 50 us after a timer: the pacing sleeps, it does not spin."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)


@dataclass
class PacedRun:
    """One run: latency and lateness of each message in nanoseconds, in order of sequence; messages/s as they
    arrived."""

    latencies_ns: array[int] = field(default_factory=lambda: array("q"))
    lateness_ns: array[int] = field(default_factory=lambda: array("q"))
    delivered_per_s: float = 0.0


class Moments:
    """Times of a growing count: `at(count)` is when it passed each number."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._counts: list[int] = [0]

    def add(self, time_ns: int, count: int) -> None:
        """At `time_ns` the count was `count`."""
        self._times.append(time_ns)
        self._counts.append(count)

    def spread(self) -> np.ndarray:
        """The time of each message, int64 ns."""
        return np.repeat(np.array(self._times, np.int64), np.diff(np.array(self._counts)))


def _as_array(values: np.ndarray) -> array[int]:
    return array("q", values.astype(np.int64).tobytes())


def paced(load: OpenLoad, per_s: int, seconds: float) -> PacedRun:
    """Publishes `per_s` messages a second for `seconds` and times each one at the one subscriber.

    Sends do not wait for deliveries. Raises `DeliveryError` when messages are lost, repeated or reordered, or when
    nothing has come for `LOST_AFTER_S` while some are missing.
    """
    clock, subscriber, publisher = time.perf_counter_ns, load.subscribers[0], load.publisher
    first, count, tick = publisher.sent, max(1, int(per_s * seconds)), max(1, per_s * TICK_NS // 10**9)
    sent, received = Moments(), Moments()
    asked = arrived = 0
    start = clock() + 10**9 // per_s
    patience = int(loadgen.LOST_AFTER_S * 1e9)
    silent_until = start + patience
    while arrived < count:
        due = start + (min(asked + tick, count) - 1) * 10**9 // per_s if asked < count else silent_until
        wait = max(0.0, (due - clock()) / 1e9)
        # select() takes microseconds where epoll takes milliseconds.
        writers = [load.publisher_socket] if publisher.blocked else []
        readable, writable, _ = select.select([subscriber.sock, load.publisher_socket], writers, (), wait)
        if load.publisher_socket in readable:
            load.on_publisher()
        if subscriber.sock in readable:
            subscriber.on_readable()
            now = clock()
            received.add(now, arrived := subscriber.received - first)
            silent_until = now + patience
        now = clock()
        if asked < count and now >= due:
            asked = min(count, (now - start) * per_s // 10**9 + 1)
            sent.add(now, asked)
            publisher.send_up_to(first + asked)
            silent_until = max(silent_until, now + patience)
        elif writable:
            publisher.send_up_to(first + asked)
        if now >= silent_until:
            raise DeliveryError(f"{count - arrived} of {count} messages did not arrive")
    went, came = sent.spread(), received.spread()
    lateness = went - start - np.arange(count) * 10**9 // per_s
    return PacedRun(_as_array(came - went), _as_array(lateness), count / (int(came[-1] - came[0]) / 1e9 + 1 / per_s))


class _TimedPublisher(LoadPublisher):
    moments: Moments
    first: int

    def send_up_to(self, limit: int) -> None:
        now = time.perf_counter_ns()
        super().send_up_to(limit)
        self.moments.add(now, self.sent - self.first)


class _TimedSubscriber(LoadSubscriber):
    moments: Moments
    first: int

    def on_readable(self) -> None:
        super().on_readable()
        self.moments.add(time.perf_counter_ns(), self.received - self.first)


class OpenTimed(OpenLoad):
    """A load of one subscriber, QoS 0, whose runs time each message."""

    def _make_publisher(self, topic: str) -> BlockPublisher:
        made = _TimedPublisher(self.publisher_socket, self._wire, topic, self.load.payload_size, 0)
        made.moments, made.first = Moments(), 0
        self._timed_publisher = made
        return made

    def _make_subscriber(self, sock: socket.socket, name: str, topic: str, first: bytes) -> Receiver:
        layout = self._wire.delivery_layout(first, self.load.payload_size)
        self._timed_subscriber = _TimedSubscriber(sock, name, layout, 1, self.load.verify)
        self._start_timing()
        return self._timed_subscriber

    def _start_timing(self) -> None:
        for one, count in (
            (self._timed_publisher, self._timed_publisher.sent),
            (self._timed_subscriber, self._timed_subscriber.received),
        ):
            one.moments, one.first = Moments(), count

    def run(
        self, seconds: float, window: int, *, ack_window: int = 1_000, messages_max: int | None = None
    ) -> RunResult:
        """Like that of any load; `latencies_ns` then tells of this run."""
        self._start_timing()
        return super().run(seconds, window, ack_window=ack_window, messages_max=messages_max)

    def latencies_ns(self) -> array[int]:
        """Of each message of the last run, which lost none, in order of sequence."""
        return _as_array(self._timed_subscriber.moments.spread() - self._timed_publisher.moments.spread())
