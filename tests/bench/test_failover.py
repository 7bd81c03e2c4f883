"""The failover driver's audit, and its options. (Drills on the real thing: tests/stories/test_failover.)"""

from __future__ import annotations

import time

from lexicast.bench.failover import TOPICS, Audit, parse


def test_the_audit_counts_what_is_lost_doubled_and_out_of_order() -> None:
    audit = Audit()
    audit.sent_s = [time.monotonic()] * (2 * TOPICS)
    audit.acknowledged = {0, 1, TOPICS}
    audit.arrived(b"%d" % TOPICS)
    audit.arrived(b"0")
    audit.arrived(b"0")
    assert (audit.lost, audit.doubled, audit.disorder) == (1, 1, 2)
    audit.arrived(b"1")
    assert audit.lost == 0


def test_quick_is_fewer_drills() -> None:
    assert parse(["--quick"]).drills < parse([]).drills == 50
