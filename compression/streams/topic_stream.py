"""The topic stream: one stream of frames a topic, from a broker to its subscribers. Never stored. Pure.

Compressed once for all subscribers of a topic, each message sees those before it (`frames` has the bytes). It
begins with the topic's first message and needs no dictionary: DEFLATE's window of 32 KiB is the topic's own past.
Nothing restarts it: who comes later, or has missed something, waits until standalone payloads have cost it as much more
than frames as the topic's past takes (ski rental, as for dictionaries), and is then sent that with its next frame. For
everybody else the stream goes on as it is.

Where the family has a field model the stream may be one of fields (`fields.codec`), which says what changed; it has a
state instead of a past, so it begins anew when somebody waits for it, at most every KEY_INTERVAL messages.

**Which of them** is tried, not assumed. Of the newest model's stream TRIAL_FRAMES messages are made beside what is
sent, then more of them after pauses that grow. What that saves on a link is for the link to judge
(`link_dictionaries`); when most of those that follow the stream have the model, the stream goes over to it.

**Of zstd** is a stream where that is shorter: its window is four times as long, which long messages need, it finds no
matches that do not pay, as DEFLATE does in digits, and takes a third of the CPU. Where messages have ZSTD_TRIED_BYTES
or more the other of the two is made beside what is sent, and the stream goes over, with a key frame, when what it has
lost by not being the other has come to what beginning anew costs (ski rental again; the trial tells both), and most
read streams of zstd. It has a state, too: it begins anew for who waits.

A topic whose messages do better standalone (long ones, a zstd dictionary of 64 KiB) is not streamed: what a standalone
payload costs is known without work, it is what was stored. Where the stream has lost after `_LOST_FRAMES` of an
interval, or at its end, and most subscribers have the dictionary that standalone payloads take, it is tried again only
after `_REST_INTERVALS`, and after twice as long each time that it loses again.

Memory: 160 KiB a stream and twice the 32 KiB of its past; 300 KiB more for each of fields that is tried, and 360 for
one of zstd (`zstd_blocks`), of which there are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ..codecs import FIELDS, Deflate
from ..dictionary import Dictionary
from ..fields.codec import FieldsStream
from ..link_dictionaries import BYTES_STREAM
from .frames import Compressing, StreamPast, check_of, compressing, fields_codec, key_frame, next_frame, past_frame

KEY_INTERVAL: Final = 100
"""Messages between key frames at least, where they make the stream begin anew."""

PAST_INTERVAL: Final = 25
"""Messages between two key frames that bring the past along, at least: each takes a millisecond to make."""

TRIAL_FRAMES: Final = 32
_PAUSE_FRAMES: Final = 256
_PAUSE_FRAMES_MAX: Final = 4_096
_SHORT_PAST_BYTES: Final = 4_096
_REST_INTERVALS: Final = 7
_REST_INTERVALS_MAX: Final = 112
_LOST_FRAMES: Final = 25
_PLAIN_EVERY: Final = 16

ZSTD_TRIED_BYTES: Final = 128
"""Mean messages that streams of zstd are tried for: the headers of its blocks are too large for shorter ones."""
_MEAN_OF: Final = 16
_SHARE_MIN: Final = 0.005


class FrameComparison(NamedTuple):
    """What messages took as frames (of a stream that begins with `before`) and would take with another dictionary."""

    dictionary: int
    before: int
    messages: int
    frames_bytes: int
    with_bytes: int


class _Trial:
    """The stream of a model made beside what is sent: TRIAL_FRAMES messages, a pause, and again."""

    def __init__(self, model: Dictionary) -> None:
        self.model = model
        self.wins = False
        self._stream: FieldsStream | None = None
        self._pause = 0
        self._next_pause = _PAUSE_FRAMES
        self._frames = 0
        self._gained = 0

    def add(self, payload: bytes, frame_bytes: int) -> int | None:
        """What the next message takes; None while nothing is tried."""
        if self._pause:
            self._pause -= 1
            return None
        if self._stream is None:
            codec = fields_codec(self.model)
            assert codec is not None
            self._stream = codec.stream()
        self._frames += 1
        took = 1 + len(self._stream.compress(payload, self._frames))
        self._gained += frame_bytes - took
        if self._frames == TRIAL_FRAMES:
            self.wins = self._gained > 0
            self._stream, self._frames, self._gained = None, 0, 0
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _PAUSE_FRAMES_MAX)
        return took


class _OtherTrial:
    """The other one of DEFLATE and zstd, made beside what is sent: TRIAL_FRAMES messages, which tell what beginning
    anew costs, as many that tell what it saves then, a pause, and again."""

    def __init__(self, of_zstd: bool) -> None:
        self._of_zstd = of_zstd
        self._other: Compressing | None = None
        self._mean_bytes = 0.0
        self._pause = 0
        self._next_pause = _PAUSE_FRAMES
        self._frames = self._taken = self._other_taken = 0
        self._cost_bytes = 0
        self._share = 0.0
        self._lost_bytes = 0.0

    @property
    def pays(self) -> bool:
        """Whether the stream has lost as much by not being the other, since that is known, as beginning anew costs."""
        return self._share > _SHARE_MIN and self._lost_bytes >= self._cost_bytes

    @property
    def wanted(self) -> bool:
        """Whether it is to begin."""
        return self._other is None and not self._pause and self._mean_bytes >= ZSTD_TRIED_BYTES

    @property
    def holds_zstd(self) -> bool:
        """Whether a stream of zstd is made."""
        return self._of_zstd and self._other is not None

    def give_up(self) -> None:
        """Another stream needs the room."""
        self._other = None
        self._frames = self._taken = self._other_taken = 0

    def add(self, payload: bytes, frame_bytes: int, may_begin: bool) -> None:
        """The next message."""
        self._lost_bytes = max(0.0, self._lost_bytes + self._share * frame_bytes)
        self._mean_bytes += (len(payload) - self._mean_bytes) / _MEAN_OF
        if self._pause:
            self._pause -= 1
        elif self._other is not None or may_begin or not self._of_zstd:
            self._try(payload, frame_bytes)

    def _try(self, payload: bytes, frame_bytes: int) -> None:
        if self._other is None:
            self._other = compressing(None, self._of_zstd)
        self._frames += 1
        self._taken += frame_bytes
        self._other_taken += 1 + len(self._other.compress(payload, self._frames))
        if self._frames == TRIAL_FRAMES:
            self._cost_bytes = self._other_taken - self._taken
            self._taken = self._other_taken = 0
        elif self._frames == 2 * TRIAL_FRAMES:
            self._share = 1 - self._other_taken / max(1, self._taken)
            self._other = None
            self._frames = self._taken = self._other_taken = 0
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _PAUSE_FRAMES_MAX)


class TopicStream:
    """The sender's side of one stream. `dictionary`: what it begins with; `of_zstd`: it is one of zstd; `may_try_zstd`:
    there is room to make one of zstd beside it."""

    def __init__(self) -> None:
        self.dictionary: Dictionary | None = None
        self.of_zstd = self.may_try_zstd = False
        self._other = _OtherTrial(True)
        self._compressor: Compressing | None = None
        self._past = StreamPast()
        self._check = 0
        self._since_key = 0
        self._since_past = PAST_INTERVAL
        # Of what frames took, percent; joined, they are compressed better.
        self._past_share = 100
        self._trial: _Trial | None = None
        self._rest = 0
        self._rest_intervals = _REST_INTERVALS
        self._interval = 0
        self._gained = 0
        self._plain = Deflate()
        self._plain_raw_bytes = self._plain_bytes = 1
        self._counted = 0

    @property
    def begins(self) -> bool:
        """Whether the next batch, if there is one, begins with a key frame that whoever has its dictionary can read."""
        return self._compressor is None

    @property
    def of_fields(self) -> bool:
        """Whether it is a stream of fields."""
        return self.dictionary is not None and self.dictionary.codec == FIELDS

    @property
    def uses(self) -> int:
        """What a link uses that follows it: the field model's id, or BYTES_STREAM."""
        return self.dictionary.id if self.dictionary is not None and self.of_fields else BYTES_STREAM

    @property
    def restarts(self) -> bool:
        """Whether it begins anew for who waits, since no past that could be sent makes up for its state."""
        return self.of_fields or self.of_zstd

    @property
    def wants_zstd(self) -> bool:
        """Whether one of zstd is to be tried beside it."""
        return not self.restarts and self._other.wanted

    @property
    def holds_zstd(self) -> bool:
        """Whether it is one of zstd, or one is made beside it."""
        return self.of_zstd or self._other.holds_zstd

    def give_up_zstd(self) -> None:
        """End the trial."""
        self._other.give_up()

    @property
    def other_pays(self) -> bool:
        """Of a stream of bytes: whether the other one of DEFLATE and zstd would have made up for beginning anew."""
        return self._other.pays

    @property
    def key_allowed(self) -> bool:
        """Whether it may begin anew for somebody who waits."""
        return self._since_key >= KEY_INTERVAL

    def begin(self, dictionary: Dictionary | None, of_zstd: bool = False) -> None:
        """The next batch begins with a key frame, and the stream anew, with this dictionary; one of zstd with none."""
        self.dictionary = dictionary
        if of_zstd != self.of_zstd or self.of_fields:
            self._other = _OtherTrial(not of_zstd)
        self.of_zstd = of_zstd
        self._compressor = None
        self._past = StreamPast(dictionary.content if dictionary is not None and not self.of_fields else b"")

    def rests(self, messages: int, loses: Callable[[], bool]) -> bool:
        """Whether the next batch, of so many messages, is to be sent standalone to all; to be asked before each.

        `loses`: whether most have the dictionary that the standalone payloads take; asked where these were shorter.
        """
        ends = self._interval >= KEY_INTERVAL
        if self._gained < 0 and (ends or self._interval >= _LOST_FRAMES):
            if loses():
                self._rest = self._rest_intervals * KEY_INTERVAL
                self._rest_intervals = min(2 * self._rest_intervals, _REST_INTERVALS_MAX)
                self.begin(None)
            self._interval = self._gained = 0
        elif ends:
            if self._gained > 0:
                self._rest_intervals = _REST_INTERVALS
            self._interval = self._gained = 0
        resting = self._rest > 0
        self._rest = max(0, self._rest - messages)
        return resting

    def wins(self, model: Dictionary) -> bool:
        """Whether a field model's stream was the shorter one when it was last tried."""
        return self._trial is not None and self._trial.model.id == model.id and self._trial.wins

    def encode(
        self, payloads: Sequence[bytes], standalone_bytes: int, newest: Dictionary | None = None
    ) -> tuple[list[bytes], FrameComparison | None]:
        """The frames for every session in step, and what they would take with the family's newest dictionary.

        `standalone_bytes`: what the standalone forms have together, with the newest dictionary where there is one.
        """
        self._past.end_batch()
        frames = [self._frame(payload) for payload in payloads]
        frames_bytes = sum(map(len, frames))
        self._interval += len(payloads)
        self._gained += standalone_bytes - frames_bytes
        if newest is None or newest.id == self.uses:
            self._trial = None
            return frames, None
        if newest.codec != FIELDS:
            self._trial = None
            return frames, FrameComparison(newest.id, self.uses, len(frames), frames_bytes, standalone_bytes)
        return frames, self._tried(newest, payloads, frames)

    def _frame(self, payload: bytes) -> bytes:
        is_key = self._compressor is None
        if self._compressor is None:
            self._compressor = compressing(self.dictionary, self.of_zstd)
            self._since_key = self._check = 0
        self._since_key += 1
        self._since_past += 1
        self._check = check_of(payload, self._check)
        data = self._compressor.compress(payload, self._since_key)
        frame = key_frame(self._check, self.dictionary, data, self.of_zstd) if is_key else next_frame(self._check, data)
        if not self.of_fields:
            self._other.add(payload, len(frame), self.may_try_zstd)
        if not self.restarts:
            self._past.add(payload, len(frame))
        return frame

    def _tried(self, model: Dictionary, payloads: Sequence[bytes], frames: Sequence[bytes]) -> FrameComparison | None:
        if self._trial is None or self._trial.model.id != model.id:
            self._trial = _Trial(model)
        messages = frames_bytes = with_bytes = 0
        for payload, frame in zip(payloads, frames, strict=True):
            took = self._trial.add(payload, len(frame))
            if took is not None:
                messages += 1
                frames_bytes += len(frame)
                with_bytes += took
        return FrameComparison(model.id, self.uses, messages, frames_bytes, with_bytes) if messages else None

    # -- for who is out of step

    def plain_bytes(self, payloads: Sequence[bytes]) -> int:
        """About what payloads take with DEFLATE alone: one in so many is tried, what is old counts less and less."""
        for payload in payloads:
            if self._counted % _PLAIN_EVERY == 0:
                if self._counted % (_PLAIN_EVERY * _PLAIN_EVERY) == 0:
                    self._plain_raw_bytes, self._plain_bytes = self._plain_raw_bytes // 2, self._plain_bytes // 2
                self._plain_raw_bytes += len(payload) + 1
                self._plain_bytes += 1 + len(self._plain.encode(payload)[1])
            self._counted += 1
        return sum(map(len, payloads)) * self._plain_bytes // max(1, self._plain_raw_bytes)

    def past_bytes(self) -> int | None:
        """About what the past takes on a link, to be asked before a batch; None where there is none, or one was sent a
        moment ago."""
        if self.restarts or self.begins:
            return None
        self._past.end_batch()
        if self._since_past < PAST_INTERVAL and len(self._past) > _SHORT_PAST_BYTES:
            return None
        return self._past.frame_bytes * self._past_share // 100

    def with_past(self, frames: Sequence[bytes]) -> bytes:
        """The first of a batch's frames for who needs the past: to be asked before the next batch is made."""
        self._since_past = 0
        made = past_frame(frames[0], self._past.content())
        self._past_share = 100 * len(made) // max(1, self._past.frame_bytes)
        return made
