"""Topic streams under whatever comes in between: every receiver has exactly what was published."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lexicast.actors.broker.encoding import Grant
from lexicast.compression.streams import topic_stream, topic_streams
from lexicast.compression.streams.topic_stream import KEY_INTERVAL

from ...support.stream_receivers import ADMITTED, FAMILY, Broker, LinkReceiver, MqttReceiver, Receiver

TOPICS = [b"line/a", b"line/b", b"line/c"]
WINDOW = 40
COUNTS = st.integers(1, ADMITTED) | st.integers(1, WINDOW) | st.integers(1, 2 * KEY_INTERVAL)
RUNS = st.lists(st.tuples(st.sampled_from(TOPICS), COUNTS, st.integers(0, 2)), min_size=1, max_size=4)


class Streams(RuleBasedStateMachine):
    """Receivers of all kinds that join, stop and go on, while dictionaries change."""

    @initialize()
    def begin(self) -> None:
        self.broker = Broker()
        self.receivers: list[tuple[Receiver, int]] = []
        self.version = 0
        self.join(0, False)

    @rule(kind=st.integers(0, 3), drops=st.booleans())
    def join(self, kind: int, drops: bool) -> None:
        if len(self.receivers) < 6:
            receiver: Receiver = LinkReceiver(self.broker, drops)
            if kind != 3:
                receiver = MqttReceiver(self.broker, kind, drops, window=WINDOW)
            receiver.subscriber.reads_zstd = kind != 1
            self.broker.subscribe(receiver.subscriber, FAMILY, Grant(qos=receiver.qos))
            self.receivers.append((receiver, self.broker.head))

    @rule(runs=RUNS, compressed=st.booleans())
    def publish(self, runs: list[tuple[bytes, int, int]], compressed: bool) -> None:
        self.broker.publish(runs, compressed)

    @rule()
    def learn(self) -> None:
        self.version += 1
        self.broker.learn(self.version)

    @rule(who=st.integers(0, 5))
    def stop(self, who: int) -> None:
        if who < len(self.receivers) and not self.receivers[who][0].subscriber.drops:
            self.receivers[who][0].subscriber.block()

    @rule(who=st.integers(0, 5))
    def go_on(self, who: int) -> None:
        if who < len(self.receivers):
            self.broker.catch_up(self.receivers[who][0].subscriber)

    @precondition(lambda self: len(self.receivers) > 1)
    @rule(who=st.integers(0, 5), topic=st.sampled_from(TOPICS))
    def leave_a_topic_for_a_while(self, who: int, topic: bytes) -> None:
        """A filter that misses one topic, and gets it back: holes in one stream alone."""
        receiver, _ = self.receivers[who % len(self.receivers)]
        subscriber = receiver.subscriber
        if subscriber.lagging or subscriber.blocked:
            return
        subscriber.drop_filter(FAMILY)
        self.broker.fanout.remove([FAMILY], subscriber)
        others = [each for each in TOPICS if each != topic]
        for each in others:
            self.broker.subscribe(subscriber, each, Grant(qos=receiver.qos))
        block = self.broker.publish([(each, 30, 0) for each in TOPICS])
        for each in others:
            subscriber.drop_filter(each)
            self.broker.fanout.remove([each], subscriber)
        self.broker.subscribe(subscriber, FAMILY, Grant(qos=receiver.qos))
        # as if it had got them from elsewhere
        missed = self.broker.sent[block.first :]
        assert receiver.got[-60:] == [each for each in missed if each[0] != topic]
        receiver.got[-60:] = missed

    @invariant()
    def everybody_has_exactly_what_was_published(self) -> None:
        for receiver, since in getattr(self, "receivers", ()):
            wanted = self.broker.sent[since:]
            if receiver.subscriber.lagging:
                assert receiver.got == wanted[: len(receiver.got)]
            else:
                assert receiver.got == wanted

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.loop.close()


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class StreamsThatGoOver(Streams):
    """The same where streams go over from DEFLATE to zstd and back as often as they can, and begin anew soon."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(topic_stream._OtherTrial, "pays", True)
        self.patch.setattr(topic_stream, "ZSTD_TRIED_BYTES", 0)
        self.patch.setattr(topic_stream, "KEY_INTERVAL", 5)
        self.patch.setattr(topic_streams, "ASKED_EVERY", 2)
        super().begin()

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()


TestStreamsThatGoOver = StreamsThatGoOver.TestCase
TestStreamsThatGoOver.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
