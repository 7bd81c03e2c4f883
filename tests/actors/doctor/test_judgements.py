"""What `lexicast doctor` makes of facts: one test a kind of trouble, and that what is fine is called so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexicast.actors.doctor.disks import (
    FolderRoom,
    Mount,
    file_system_finding,
    folder_finding,
    mount_of,
    room_finding,
)
from lexicast.actors.doctor.findings import OK, PROBLEM, STATES, WARNING, Finding, counted_states, worst_first
from lexicast.actors.doctor.machine import (
    ClockState,
    GroupMemory,
    clock_finding,
    grouped_memory,
    memory_finding,
    open_files_finding,
    shared_memory_finding,
)
from lexicast.actors.doctor.network import ConfiguredPort, addresses_finding, port_findings
from lexicast.actors.doctor.ray_state import (
    RaySession,
    RaySessions,
    sessions_finding,
    temporary_space_finding,
    token_finding,
)
from lexicast.actors.doctor.safety import (
    KeptFile,
    bridge_findings,
    certificate_findings,
    password_findings,
    rights_findings,
    security_findings,
)
from lexicast.actors.doctor.served import RunState, run_finding, served_findings, version_findings
from lexicast.actors.doctor.software import (
    InstalledPackage,
    Requirement,
    data_path_finding,
    java_finding,
    machine_finding,
    package_findings,
    parse_requirements,
    python_finding,
)
from lexicast.actors.tls.certificates import TlsFiles
from lexicast.cluster.errors import ConfigError
from lexicast.cluster.security.passwords import PBKDF2, SALT_BYTES, hash_password

MIB, GIB = 1024 * 1024, 1024 * 1024 * 1024
NOW = datetime(2026, 11, 30, tzinfo=UTC)
MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 0:40 / /mnt/all\\040data rw,noatime shared:7 - nfs4 server:/data rw
25 22 254:1 / /mnt/old ro,relatime - xfs /dev/vdb rw
27 22 254:2 / /mnt/failed rw,relatime - ext4 /dev/vdc ro,errors=remount-ro
26 22 0:50 / /mnt/old rw,relatime - tmpfs tmpfs rw
a line that is none
"""


def states(*found: Finding) -> list[str]:
    return [each.state for each in found]


def only(found: Any) -> Finding:
    (one,) = found
    assert isinstance(one, Finding)
    return one


@given(st.lists(st.sampled_from(STATES)))
def test_the_worst_comes_first_and_nothing_is_lost(given_states: list[str]) -> None:
    found = [Finding(str(number), state, "so") for number, state in enumerate(given_states)]
    ordered = worst_first(found)
    assert sorted(ordered) == sorted(found)
    for state in STATES:
        numbers = [int(each.check) for each in ordered if each.state == state]
        assert numbers == sorted(numbers)
        assert counted_states(found)[state] == len(numbers)
    assert states(*ordered) == sorted(given_states, key=STATES.index)


# -- software


@pytest.mark.parametrize(
    ("version", "implementation", "state"),
    [((3, 11, 9), "CPython", OK), ((3, 12, 1), "CPython", WARNING), ((3, 10, 9), "CPython", PROBLEM)],
)
def test_python(version: tuple[int, ...], implementation: str, state: str) -> None:
    assert python_finding(version, implementation).state == state


def test_machines() -> None:
    asked = [("Linux", "x86_64", 64), ("Linux", "riscv64", 64), ("Linux", "armv7l", 32), ("Darwin", "arm64", 64)]
    assert states(*[machine_finding(*each) for each in asked]) == [OK, WARNING, PROBLEM, PROBLEM]


def test_requirements_are_read_as_metadata_has_them() -> None:
    lines = ["ray[default]==2.60.0", "typer", "plyvel; extra == 'bench'", 'raydp==1.6.5; extra == "spark"', "?"]
    ray, typer = Requirement("ray", "2.60.0", "ray[default]==2.60.0"), Requirement("typer", "", "typer")
    assert parse_requirements(lines) == [ray, typer]
    assert parse_requirements(lines, ["spark"]) == [ray, typer, Requirement("raydp", "1.6.5", "raydp==1.6.5")]


def test_each_package_that_is_not_as_pinned_is_named() -> None:
    wanted = parse_requirements(["ray[default]==2.60.0", "lmdb==3.0.0", "uvloop==0.23.0", "typer", "rich"])
    here = {
        "ray": InstalledPackage("2.61.0"),
        "lmdb": InstalledPackage("3.0.0", "no such symbol"),
        "uvloop": InstalledPackage("0.23.0"),
        "rich": InstalledPackage("1.0"),
    }
    ray, lmdb, typer = package_findings(wanted, here)
    assert states(ray, lmdb, typer) == [WARNING, PROBLEM, PROBLEM]
    assert "2.61.0" in ray.is_so
    assert ray.to_do == "pip install 'ray[default]==2.60.0'"
    assert "no such symbol" in lmdb.is_so
    assert "typer is not installed" in typer.is_so


def test_packages_as_pinned_are_one_line_and_unknown_pins_a_warning() -> None:
    found = only(package_findings(parse_requirements(["lmdb==3.0.0"]), {"lmdb": InstalledPackage("3.0.0")}))
    assert (found.state, "lmdb 3.0.0" in found.is_so) == (OK, True)
    assert only(package_findings([], {})).state == WARNING


def test_the_data_path_runs_compiled_or_says_why_not() -> None:
    assert data_path_finding({"lexicast.a": Path("a.so")}, "").state == OK
    asked = data_path_finding("LEXICAST_PURE is set", "LEXICAST_PURE")
    assert (asked.state, asked.to_do) == (WARNING, "unset LEXICAST_PURE")
    assert "make compiled" in data_path_finding("not compiled", "").to_do


def test_java_is_asked_for_by_spark_alone() -> None:
    assert java_finding(False, "", None).state == OK
    assert java_finding(True, "", 17).state == OK
    assert states(java_finding(True, "", 21), java_finding(True, "", None)) == [WARNING, WARNING]
    assert java_finding(True, "there is none", None).state == PROBLEM


# -- the machine


@given(st.integers(64, 1 << 30), st.integers(0, 1 << 30), st.integers(1, 1_000_000))
def test_open_files_count_as_ray_raises_them(soft: int, more: int, connections: int) -> None:
    found = open_files_finding(soft, soft + more, connections)
    limit = max(soft, min(soft + more, 65_536))
    assert (found.state == OK) == (limit >= connections + 500)
    assert (found.to_do == "") == (found.state == OK)


def test_memory() -> None:
    assert memory_finding(16 * GIB, 8 * GIB, 5, False).state == OK
    assert memory_finding(16 * GIB, GIB, 5, False).state == WARNING
    assert memory_finding(16 * GIB, GIB, 5, True).state == OK  # what runs has its memory
    assert memory_finding(16 * GIB, GIB // 2, 5, True).state == PROBLEM


def test_memory_of_a_container() -> None:
    group, machine = GroupMemory("max\n", "5\n", "cache 1\ninactive_file 1000\nactive_file 7"), (16 * GIB, 8 * GIB)
    assert grouped_memory(*machine, group, "inactive_file") == machine
    assert grouped_memory(*machine, group._replace(limit=f"{1 << 63}"), "inactive_file") == machine
    limited = group._replace(limit=f"{GIB}\n", used="5000\n")
    assert grouped_memory(*machine, limited, "inactive_file") == (GIB, GIB - 4000)
    assert grouped_memory(16 * GIB, 8, limited._replace(stat=""), "inactive_file") == (GIB, 8)
    assert grouped_memory(*machine, limited._replace(limit="1000"), "inactive_file") == (1000, 0)


def test_shared_memory() -> None:
    assert shared_memory_finding(8 * GIB, 16 * GIB).state == OK
    assert shared_memory_finding(64 * MIB, 16 * GIB).state == WARNING
    assert shared_memory_finding(None, 16 * GIB).state == WARNING


def test_a_clock_of_which_nobody_knows_is_told_as_such() -> None:
    asked = [ClockState(True, "chrony"), ClockState(False, "adjtimex"), ClockState(None, "")]
    assert states(*[clock_finding(each) for each in asked]) == [OK, WARNING, WARNING]
    assert "nobody here says" in clock_finding(asked[2]).is_so


# -- disks


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/home/ann/.local", Mount("/", "ext4", False)),
        ("/procession", Mount("/", "ext4", False)),
        ("/mnt/all data/a", Mount("/mnt/all data", "nfs4", False)),
        ("/mnt/failed/a", Mount("/mnt/failed", "ext4", True)),
        ("/mnt/old", Mount("/mnt/old", "tmpfs", False)),  # what was mounted last hides the other one
    ],
)
def test_the_mount_of_a_path(path: str, mount: Mount) -> None:
    assert mount_of(path, MOUNTS) == mount


@given(
    st.lists(st.sampled_from(["/", "/a", "/a/b", "/ab", "/a/b/c"]) | st.text(st.characters(exclude_characters="/\\")))
)
def test_the_longest_mount_point_above_a_path_is_its_own(points: list[str]) -> None:
    mounts = "\n".join([f"1 1 0:1 / {point} rw - kind{number} x rw" for number, point in enumerate(points)])
    above = [point for point in points if point in ("/", "/a", "/a/b")]
    found = mount_of("/a/b/x", mounts)
    assert (found and found.point) == max(above, key=len, default=None)


@pytest.mark.parametrize(
    ("kind", "state"),
    [("ext4", OK), ("xfs", OK), ("nfs4", PROBLEM), ("fuse.sshfs", PROBLEM), ("overlay", WARNING), ("tmpfs", WARNING)],
)
def test_file_systems(kind: str, state: str) -> None:
    assert file_system_finding("/data", Mount("/", kind, False)).state == state
    assert file_system_finding("/data", Mount("/", kind, True)).state == PROBLEM
    assert file_system_finding("/data", None).state == WARNING


def test_stores_are_to_be_stopped_by_their_quota_not_by_the_disk() -> None:
    room = FolderRoom(100 * GIB, 8 * GIB, 2, 48 * GIB, 256 * MIB)
    assert room_finding(room).state == OK
    assert room_finding(room._replace(free_bytes=87 * GIB)).state == WARNING
    assert room_finding(room._replace(free_bytes=87 * GIB, stores_bytes=10 * GIB)).state == OK
    assert room_finding(room._replace(free_bytes=256 * MIB)).state == PROBLEM


def test_data_folders() -> None:
    assert folder_finding("/data", True, 0o700, True).state == OK
    assert folder_finding("/data", True, None, True).state == OK
    assert folder_finding("/data", True, 0o700, False).state == WARNING
    assert folder_finding("/data", True, 0o777, True).state == PROBLEM
    assert folder_finding("/data", False, 0o755, True).state == PROBLEM


# -- ports and Ray


def test_a_port_is_free_ours_or_somebody_elses() -> None:
    free = ConfiguredPort("mqtt.port", "127.0.0.1", 1883)
    taken = free._replace(refusal="port 1883 is in use by another program: choose another", holder="process 7, nginx")
    assert only(port_findings([free], frozenset(), False)).state == OK
    assert "this cluster" in only(port_findings([free], frozenset([1883]), True)).is_so
    found = only(port_findings([taken], frozenset(), False))
    assert (found.state, found.to_do) == (PROBLEM, "choose another")
    assert "process 7, nginx" in found.is_so
    assert only(port_findings([taken], frozenset([1884]), True)).state == WARNING
    left = only(port_findings([taken], frozenset([1883]), False))
    assert (left.state, "process 7, nginx" in left.is_so) == (WARNING, True)
    assert "`lexicast down`" in left.to_do
    assert only(port_findings([free], frozenset([1883]), False)).state == OK


def test_addresses() -> None:
    refused, noticed, fine = (addresses_finding(*each) for each in (("open to all", ""), ("", "refused"), ("", "")))
    assert states(refused, noticed, fine) == [PROBLEM, WARNING, OK]
    assert "open to all" in refused.is_so


def test_rays_token() -> None:
    assert token_finding("disabled", 0o600).state == WARNING
    assert token_finding("", 0o644).state == PROBLEM
    assert states(token_finding("", 0o600), token_finding("token", None)) == [OK, OK]


def test_what_ended_rays_left_counts_by_its_bytes() -> None:
    used, left = RaySession("/tmp/ray/a", 5 * GIB, True), RaySession("/tmp/ray/b", GIB, False)
    assert sessions_finding(RaySessions((used,), True)).state == OK
    assert sessions_finding(RaySessions((used, left._replace(used_bytes=GIB - 1)), True)).state == OK
    found = sessions_finding(RaySessions((used, left), False))
    assert found.state == WARNING
    assert "/tmp/ray/b" in found.is_so
    assert "/tmp/ray/a" not in found.is_so
    assert "at least" in found.is_so
    assert temporary_space_finding("/tmp", 6 * GIB, 100 * GIB).state == OK
    assert temporary_space_finding("/tmp", 4 * GIB, 100 * GIB).state == WARNING


# -- certificates and security


@pytest.mark.parametrize(("days", "state"), [(-1, PROBLEM), (29, WARNING), (31, OK)])
def test_certificates_that_expire(days: int, state: str) -> None:
    looked = TlsFiles(NOW + timedelta(days=days), None, frozenset(), ())
    assert only(certificate_findings(looked, NOW)).state == state


def test_certificates_that_cannot_be_used_and_lists_that_are_overdue() -> None:
    assert only(certificate_findings(None, NOW)).state == OK
    assert only(certificate_findings("the key is another's", NOW)).state == PROBLEM
    looked = TlsFiles(NOW + timedelta(days=90), NOW - timedelta(days=1), frozenset(), ("it has no name",))
    assert states(*certificate_findings(looked, NOW)) == [OK, PROBLEM, WARNING]


@pytest.mark.parametrize(("days", "state"), [(-1, PROBLEM), (29, WARNING), (31, OK)])
def test_bridges_certificates(days: int, state: str) -> None:
    far, until = NOW + timedelta(days=900), NOW + timedelta(days=days)
    found = only(bridge_findings([("cloud", {"ca": far, "certificate": until}), ("plain", {})], NOW))
    assert (found.state, "cloud" in found.is_so) == (state, True)


def test_bridges_that_are_none_or_not_taken() -> None:
    assert only(bridge_findings([], NOW)).state == OK
    assert only(bridge_findings(ConfigError("[cloud]: no address"), NOW)).state == PROBLEM


def test_hashes_that_are_guessed_at_fast() -> None:
    salt = bytes(SALT_BYTES[PBKDF2])
    good = hash_password(b"a", salt, PBKDF2)
    assert only(password_findings({"ada": good.text()})).state == OK
    weak, told = password_findings({"ada": good.text(), "bob": good._replace(iterations=101).text()})
    assert states(weak, told) == [WARNING, OK]
    assert "'bob'" in weak.is_so
    assert "'ada'" not in weak.is_so


def test_files_of_security() -> None:
    assert only(security_findings(None)).state == OK
    assert only(security_findings([])).state == OK
    assert only(security_findings(["everybody reads it"])).state == WARNING
    assert only(security_findings(ConfigError("line 3"))).state == PROBLEM


@given(st.integers(0, 0o777), st.booleans())
def test_rights(mode: int, is_secret: bool) -> None:
    found = only(rights_findings([KeptFile("/etc/passwords", mode, is_secret)]))
    assert (found.state == PROBLEM) == bool(mode & 0o002 or (is_secret and mode & 0o004))


# -- the cluster


def status_now(**more: Any) -> dict[str, Any]:
    coordination = {"group_states": {"0": (1, "coordinator-0", ["coordinator-0"])}, "members": {}, "copies": 1}
    coordinators = {"coordinator-0": {"version": "0.1.0", "store": {}}}
    brokers = {"broker-0": {"version": "0.1.0"}}
    return {"time": 0.0, "coordination": coordination, "coordinators": coordinators, "brokers": brokers, **more}


def test_a_run_that_is_none_alive_or_was_killed() -> None:
    run = {"cluster_id": "c" * 32, "up_pid": 7, "mqtt_port": 1884, "mqtt_ws_port": 0, "pages": ["https://a:18080/"]}
    assert run_finding(RunState("/data", None)).state == OK
    assert run_finding(RunState("/data", run, True)).state == OK
    assert run_finding(RunState("/data", run, False)).state == WARNING
    assert run_finding(RunState("/data", None, failure="no right")).state == PROBLEM
    assert RunState("/data", run, True).ports() == {1884, 18080}
    assert RunState("/data", None).ports() == frozenset()


def test_a_cluster_that_serves() -> None:
    assert states(*served_findings(status_now())) == [OK]
    assert states(*version_findings(status_now(), "0.1.0")) == [OK]


def test_what_is_not_served_is_a_problem_and_what_else_is_told_a_warning() -> None:
    full = {"coordinator-0": {"store": {"full": True, "free_bytes": 1}}}
    assert states(*served_findings(status_now(coordinators=full))) == [PROBLEM]
    behind = {"broker-0": {"long_behind": 3}}
    assert states(*served_findings(status_now(brokers=behind))) == [WARNING]
    gone = {"broker-0": {"error": "no answer", "fate": "it starts again"}}
    assert states(*served_findings(status_now(brokers=gone))) == [PROBLEM]
    lost = {**status_now()["coordination"], "lost": ["coordinator-0"]}
    assert states(*served_findings(status_now(coordination=lost))) == [PROBLEM]


def test_other_versions_are_named_with_who_runs_them() -> None:
    found = only(version_findings(status_now(brokers={"broker-0": {"version": "0.0.9"}, "b": {}}), "0.1.0"))
    assert found.state == WARNING
    assert "broker-0 run lexicast 0.0.9" in found.is_so
