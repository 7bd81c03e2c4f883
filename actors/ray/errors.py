"""Errors of Ray in lexicast's words: translated here and nowhere else.

`RAY_ERRORS` names every exception class of `ray.exceptions` (a test compares it with the installed Ray, so that a class
that a new Ray brings has to be thought about), with what it means for whoever called and whether calling again may
help. What a Ray call raises beside those (ConnectionError of a Ray client, RuntimeError of a Ray that is shut down) is
translated too: nobody who calls an actor meets anything but a LexicastError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import ray.exceptions

from lexicast.cluster.errors import AuthenticationError, LexicastError, UnavailableError


class Meaning(NamedTuple):
    """What an error of Ray means. `passes`: it may be over when the call is made again."""

    text: str
    passes: bool = False


# Class name in ray.exceptions -> what it means.
RAY_ERRORS: Final[dict[str, Meaning]] = {
    # of actors
    "ActorAlreadyExistsError": Meaning("an actor of that name is there already"),
    "ActorDiedError": Meaning("the actor is gone", True),
    "ActorHandleNotFoundError": Meaning("the actor is not known to this Ray any more"),
    "ActorPlacementGroupRemoved": Meaning("the actor's place was taken away"),
    "ActorUnavailableError": Meaning("the actor cannot be reached now, Ray may be starting it again", True),
    "ActorUnschedulableError": Meaning("Ray cannot place the actor: the node that it belongs to is gone"),
    "AsyncioActorExit": Meaning("the actor is ending", True),
    "PendingCallsLimitExceeded": Meaning("too many calls wait for the actor", True),
    "RayActorError": Meaning("the actor is gone", True),
    # of nodes and processes
    "LocalRayletDiedError": Meaning("Ray on this node is gone"),
    "NodeDiedError": Meaning("the node is gone"),
    "OutOfDiskError": Meaning("the disk of a node is full", True),
    "OutOfMemoryError": Meaning("a node has no memory left", True),
    "RpcError": Meaning("a node cannot be reached", True),
    "RuntimeEnvSetupError": Meaning("a process could not be prepared"),
    "WorkerCrashedError": Meaning("the process died", True),
    # of calls
    "AuthenticationError": Meaning("Ray refuses this process: it does not hold that Ray's token"),
    "CrossLanguageError": Meaning("the call failed in another language"),
    "GetTimeoutError": Meaning("the actor did not answer in time"),
    "RayError": Meaning("Ray failed"),
    "RaySystemError": Meaning("Ray itself failed", True),
    "RayTaskError": Meaning("it failed inside"),
    "TaskCancelledError": Meaning("the call was cancelled"),
    "TaskPlacementGroupRemoved": Meaning("the call's place was taken away"),
    "TaskUnschedulableError": Meaning("Ray cannot place the call: no node can take it"),
    "UnserializableException": Meaning("it failed inside, with an error that cannot be sent"),
    "UserCodeException": Meaning("it failed inside"),
    # of objects
    "ObjectFetchTimedOutError": Meaning("a result could not be fetched in time", True),
    "ObjectFreedError": Meaning("a result was given back before it was fetched"),
    "ObjectLostError": Meaning("a result is lost: the node that held it is gone"),
    "ObjectReconstructionFailedError": Meaning("a result is lost and could not be made again"),
    "ObjectRefStreamEndOfStreamError": Meaning("a stream of results has ended"),
    "ObjectStoreFullError": Meaning("Ray's memory for results is full", True),
    "OufOfBandObjectRefSerializationException": Meaning("a reference was sent outside Ray"),
    "OwnerDiedError": Meaning("a result is lost: whoever asked for it is gone"),
    "PlasmaObjectNotAvailable": Meaning("a result is not there yet", True),
    "ReferenceCountingAssertionError": Meaning("a result was deleted too early"),
    "StreamingGeneratorReplayInconsistentError": Meaning("a stream of results could not be made again"),
    # of channels and graphs, which lexicast does not use
    "RayCgraphCapacityExceeded": Meaning("too many calls wait in a compiled graph", True),
    "RayChannelError": Meaning("a channel of Ray failed"),
    "RayChannelTimeoutError": Meaning("a channel of Ray did not answer in time"),
    "RayDirectTransportError": Meaning("a direct transfer of Ray failed"),
}

NO_ANSWER: Final = Meaning("the actor did not answer in time")
LOG_HINT: Final = "see its log below /tmp/lexicast-*/ray/session_latest/logs (of a Ray that was joined: /tmp/ray/...)"


def meaning(error: BaseException) -> Meaning:
    """What an exception of a Ray call means: that of the nearest class that RAY_ERRORS names."""
    for cls in type(error).__mro__:
        if cls.__module__.startswith("ray.") and cls.__name__ in RAY_ERRORS:
            return RAY_ERRORS[cls.__name__]
    return NO_ANSWER if isinstance(error, TimeoutError) else Meaning("Ray cannot be used", isinstance(error, OSError))


def may_pass(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later: an actor is starting again, say."""
    return not isinstance(error, ray.exceptions.RayTaskError) and meaning(error).passes


def translated(error: BaseException, what: str = "") -> LexicastError:
    """A lexicast error for whatever a Ray call raised: what the actor raised on purpose, else an UnavailableError.

    `what`: whom was asked for what, for errors of Ray's own.
    """
    if isinstance(error, ray.exceptions.RayTaskError):  # also where it passes itself off as its cause
        cause = error.cause
        if isinstance(cause, LexicastError):
            return cause
        if isinstance(cause, Exception) and cause is not error and isinstance(cause, ray.exceptions.RayError):
            return translated(cause, what)
        told = f"{type(cause).__name__}: {error_line(cause)}" if isinstance(cause, Exception) else error_line(error)
        return UnavailableError(f"{_prefix(what)}it failed inside ({told}): {LOG_HINT}")
    if isinstance(error, LexicastError):
        return error
    kind = AuthenticationError if isinstance(error, ray.exceptions.AuthenticationError) else UnavailableError
    return kind(f"{_prefix(what)}{_told(error)}")


@contextmanager
def ray_errors(what: str = "") -> Iterator[None]:
    """Around Ray calls: whatever they raise comes out `translated`. Cancellation passes through."""
    try:
        yield
    except Exception as error:
        raise translated(error, what) from None


def error_line(error: BaseException) -> str:
    """An error's first line; its class where it says nothing."""
    return next(iter(_lines(error)), type(error).__name__)


def _lines(error: BaseException) -> list[str]:
    try:
        return [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:  # Ray puts its text together when asked, from what it may have been made without
        return []


def _prefix(what: str) -> str:
    return f"{what}: " if what else ""


def _told(error: BaseException) -> str:
    """What it means, and of Ray's page about it the line that says why: the error of a constructor, where it is one."""
    raised = [line for line in _lines(error) if re.match(r"[\w.]+(Error|Exception): ", line)]
    if isinstance(error, ray.exceptions.RayActorError) and raised:
        return raised[-1]
    text = meaning(error).text
    return text if isinstance(error, TimeoutError) else f"{text} ({error_line(error)})"
