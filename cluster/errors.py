"""Errors that users meet. Each message says what was wrong and what to do.

Two families (as in h11): a `UsageError` is the caller's mistake and leaves everything as it was; a `PeerError`
means that the other side of a connection broke the contract. `StoreError`s come from the disk, `UnavailableError`
from the cluster's state.
"""

from __future__ import annotations


class LexicastError(Exception):
    """Base of every error that lexicast raises on purpose."""


class UsageError(LexicastError, ValueError):
    """The caller's mistake; the call had no effect."""


class LimitError(UsageError):
    """More than a limit allows: something else has to go first."""


class TopicError(UsageError):
    """A topic name or filter that MQTT or lexicast does not allow."""


class ConfigError(UsageError):
    """A configuration that cannot be used: unknown key, wrong type, value out of range."""


class PeerError(LexicastError):
    """The other side of a link or connection broke its contract; the connection is closed."""


class AuthenticationError(PeerError):
    """Somebody is not who it says it is: the other side does not hold this cluster's key, or a login was refused."""


class UntrustedBrokerError(AuthenticationError):
    """A broker was told no secret: nobody vouches for its certificate, or others could read it on the way."""


class NotAuthorizedError(LexicastError):
    """The user who has logged in may not do this, and it was not done: the cluster's rules say who may do what, and
    what is an operator's needs the cluster's key."""

    @classmethod
    def for_operators(cls, what: str) -> NotAuthorizedError:
        """`what` needs the key."""
        return cls(
            f"{what} is for operators: it needs the cluster's key, which lies in the data folder of `lexicast up` (run "
            "it there, as its user); whoever has logged in may publish, subscribe and read the history"
        )


class UnavailableError(LexicastError):
    """What is needed is not there now; trying again later may work."""


class LedElsewhereError(UnavailableError):
    """A coordinator does not lead the topic group, or does not serve it yet: ask its leader."""


class IndexNotReadyError(UnavailableError):
    """Only the index of a store could answer, and that is being made anew: ask again in a while, not at once."""


class NoReplyError(UnavailableError, TimeoutError):
    """Nobody has replied to a request in time: nobody serves its topic, or who does is slow or gone."""


class PublishRefusedError(UnavailableError):
    """A publication was refused and is not stored (disk reserve reached, store closed)."""


class DictionaryError(LexicastError):
    """A payload whose dictionary is missing, wrong, expired or damaged; names the family and the id."""


class StoreError(LexicastError):
    """Base of the storage errors."""


class StoreFormatError(StoreError):
    """Not a store, another cluster's store, a damaged one, or one written by a newer lexicast."""


class StoreFullError(StoreError):
    """The quota's or the disk's reserve is reached: publishing is refused, reading and expiry go on."""


class StorePoisonedError(StoreError):
    """An I/O error happened earlier; the store refuses everything until it is opened anew after `repair`."""


class StaleEpochError(LexicastError):
    """A request carries an epoch older than the group's: its sender was deposed."""


class NotOwnerError(LexicastError):
    """A session of this client id belongs to another user."""


def remote_error(text: str) -> LexicastError:
    """A peer's error, told as "Class: message", as an exception of the same class where it is one of lexicast's own."""
    name, _, message = text.partition(": ")
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, LexicastError):
        return kind(message)
    return UnavailableError(text)
