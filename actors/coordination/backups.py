"""The backups of brokers (REAPS, section III): who stands in for whom, from what the brokers tell of themselves.

A broker tells what its subscribers want (`ft.interest_sample`) when that has changed, and else that it lives. From that
`ft.reassignment` changes a few backups at a time. A broker that has not been heard of for LOST_S is nobody's backup,
nor is one whose node is being drained; both keep their own, where their subscribers go. (One that was suspected wrongly
has lost nothing by it: a warning says so.) What must change changes at once; whether a change would pay is looked at
every WEIGHED_S, since subscribers come and go by the second.

A location is what a node's label says, or, where it says nothing, the node: so the local backup of a broker is never
farther away than the remote one, and there is a remote one wherever there are two nodes.

Registry key: backups, {broker: (local, remote)}; what brokers have told is in memory, and told again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from lexicast.cluster.membership import Member
from lexicast.ft.assignment import Backups
from lexicast.ft.interest_sample import InterestSample
from lexicast.ft.reassignment import PAYS, reassigned
from lexicast.ft.sampled_network import network_of
from lexicast.storage.registry import Registry

log = logging.getLogger(__name__)

BACKUPS_KEY: Final = "backups"
LOST_S: Final = 20.0
# Backups that change in one turn.
AT_ONCE: Final = 4
WEIGHED_S: Final = 30.0
# So much of its subscriptions no move of a broker can save.
NEVER: Final = 2.0


class BrokerBackups:
    """See the module's docstring. `in_force`: the assignment, by the brokers' names."""

    def __init__(self, registry: Registry) -> None:
        rows = registry.get(BACKUPS_KEY)
        self.in_force: dict[str, Backups] = {name: Backups(*row) for name, row in (rows or {}).items()}
        self._samples: dict[str, InterestSample] = {}
        self._heard_s: dict[str, float] = {}
        self._silent: set[str] = set()
        self._began_s: float | None = None
        self._weighed_s = -WEIGHED_S

    def by_broker(self) -> dict[str, tuple[str, ...]]:
        """The assignment, the nearer one first."""
        return {name: (*filter(None, each),) for name, each in self.in_force.items()}

    def told(self, broker: str, sample: InterestSample | None, now_s: float) -> bool:
        """A broker lives; `sample`: what its subscribers want, None where that is as it was. False: it is not known
        here, and wanted."""
        self._heard_s[broker] = now_s
        if sample is not None:
            self._samples[broker] = sample
        return broker in self._samples

    def turn(self, members: Mapping[str, Member], leaving: Collection[str], now_s: float) -> dict[str, Backups] | None:
        """The assignment as it is to be, None where nothing changes. `members`: the brokers of the cluster; `leaving`:
        nodes that are being drained."""
        self._began_s = now_s if self._began_s is None else self._began_s
        for gone in self._samples.keys() - members.keys():
            del self._samples[gone]
        if members.keys() - self._samples.keys() and now_s - self._began_s < LOST_S:
            return None  # a coordination server that was started again has not heard of all yet
        self._look_for_silence(members, now_s)
        lost = {name for name in self._samples if name in self._silent or members[name].node in leaving}
        locations = {name: members[name].location or members[name].node for name in self._samples}
        network = network_of(self._samples, locations)
        pays = NEVER
        if now_s >= self._weighed_s + WEIGHED_S:
            self._weighed_s, pays = now_s, PAYS
        found = reassigned(network, self.in_force, lost=lost, at_once=AT_ONCE, pays=pays)
        assigned = found.assignment.by_name(network)
        return None if assigned == self.in_force else assigned

    def _look_for_silence(self, members: Mapping[str, Member], now_s: float) -> None:
        silent = {name for name in self._samples if now_s - self._heard_s[name] > LOST_S}
        for name in sorted(silent - self._silent):
            log.warning("%s has not been heard of for %.0f s: it stands in for nobody now", name, LOST_S)
        for name in sorted((self._silent - silent) & members.keys()):
            log.warning("%s is heard of again: it has kept its backups, and may stand in for others", name)
        self._silent = silent

    def status(self) -> dict[str, Any]:
        """Of each broker (local, remote); "": nobody."""
        return {name: list(backups) for name, backups in sorted(self.in_force.items())}
