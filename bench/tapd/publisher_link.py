"""A publisher's link as TAPD decides it (thesis chapter 6): which dictionary it uses, so that none pays in vain.

The sampling broker runs PREDICT as if there were one publisher, brokers always hold the newest dictionary and recode
towards subscribers; on the way in, each link stands alone (section 6.3, algorithm 6.4):

    no dictionary yet   DEFLATE, until as many messages have been sent as the newest dictionary needs to pay for
                        itself: what has lasted n messages is expected to last n more
    a dictionary        is kept however old (*prolonged*, compressing worse: degraded) until
                          the link has saved the price of a newer one against DEFLATE: so it stays below DEFLATE
                          even if it stops at once, and
                          the newer one would have paid for itself over the messages since the last

A link that stops after its first dictionary and before that has paid is above DEFLATE: nobody can know (section
6.2.3). `PublisherLink.amortized` tells such links apart. A message that DEFLATE makes shorter than the old dictionary
is sent with DEFLATE, so a link that has amortized never falls behind again.

This is the link of the thesis, of mean sizes and DEFLATE. Brokers decide by `compression.link_dictionaries`: by bytes,
not by messages, with a threshold of each link's own and its own past in the place of DEFLATE (`bench.compression`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PublisherLink:
    """One publisher's link: what it has sent, and what that would have been with DEFLATE. All in bytes."""

    messages: int = 0
    sent_bytes: float = 0.0
    deflate_bytes: float = 0.0
    dictionary_bytes: int = 0
    dictionary: int | None = None
    """Which dictionary the publisher holds (any number that tells them apart); None: none."""
    taken_at: int = 0
    """How many messages it had sent when it took it."""

    @property
    def saved_bytes(self) -> float:
        """Against DEFLATE, dictionaries paid; negative while the first one has not amortized."""
        return self.deflate_bytes - self.sent_bytes - self.dictionary_bytes

    @property
    def amortized(self) -> bool:
        """Whether what was spent on dictionaries has come back."""
        return self.saved_bytes >= 0

    def send(self, with_dictionary_bytes: float, deflate_bytes: float) -> float:
        """One message; returns the bytes sent. Both lengths with tag; the first is ignored without dictionary."""
        sent = deflate_bytes if self.dictionary is None else min(with_dictionary_bytes, deflate_bytes)
        self.messages += 1
        self.sent_bytes += sent
        self.deflate_bytes += deflate_bytes
        return sent

    def should_take(self, dictionary: int, packed_bytes: int, saving_bytes: float) -> bool:
        """Whether to send the newest dictionary now.

        `saving_bytes`: what a message becomes shorter by it, against what the link uses now (DEFLATE or the old one).
        """
        if dictionary == self.dictionary or saving_bytes <= 0:
            return False
        pays = (self.messages - self.taken_at) * saving_bytes >= packed_bytes
        return pays and (self.dictionary is None or self.saved_bytes >= packed_bytes)

    def take(self, dictionary: int, packed_bytes: int) -> None:
        """The dictionary was sent to the publisher."""
        self.dictionary = dictionary
        self.dictionary_bytes += packed_bytes
        self.taken_at = self.messages
