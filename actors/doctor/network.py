"""The addresses and ports that are configured, judged. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .findings import OK, PROBLEM, WARNING, Finding


def addresses_finding(refusal: str, notice: str) -> Finding:
    """`refusal`: why `lexicast up` would not listen where it is to; `notice`: what it would say of who is let in."""
    if refusal:
        return Finding("addresses", PROBLEM, refusal, "mend it: `lexicast up` does not start before")
    if notice:
        return Finding("addresses", WARNING, notice, "see mqtt.allow_anonymous (`lexicast config --documented`)")
    return Finding("addresses", OK, "nothing is open to other machines that should not be")


class ConfiguredPort(NamedTuple):
    """A port that nodes listen on. `refusal`: why it cannot be had now, in words, "" where it can; `holder`: the
    process that has it, "" where that is not known."""

    knob: str
    host: str
    port: int
    refusal: str = ""
    holder: str = ""


def port_findings(ports: Sequence[ConfiguredPort], own: frozenset[int], is_running: bool) -> Iterator[Finding]:
    """`own`: ports that the cluster on this data folder serves, or did before `lexicast up` was killed; `is_running`:
    whether it does."""
    for each in ports:
        told = f"{each.knob} = {each.port} at {each.host or 'every address'}"
        if is_running and each.port in own:
            yield Finding("ports", OK, f"{told} is served by this cluster")
        elif not each.refusal:
            yield Finding("ports", OK, f"{told} is free")
        elif each.port in own:
            so = f"{told} may be held by what a killed `lexicast up` has left{_holder(each)}"
            yield Finding("ports", WARNING, so, "run `lexicast up` again, or `lexicast down` to end what it has left")
        else:
            why, _, to_do = each.refusal.partition(": ")
            state = WARNING if is_running else PROBLEM  # what runs has another one
            yield Finding("ports", state, f"{told}: {why}{_holder(each)}", to_do or f"change {each.knob}")


def _holder(port: ConfiguredPort) -> str:
    return f" ({port.holder})" if port.holder else ""
