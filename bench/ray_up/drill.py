"""The drill: ray_cluster.yaml as it stands is started with `ray up`, loses a machine, grows, drains one and is stopped.

Each step is a line of shell that an operator types on his own machine; what has to be seen is looked for, and what he
sees goes into the transcript. Messages go through the cluster by `mosquitto_pub` and `mosquitto_sub`, which know
nothing of it but one node's address.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Final

from lexicast.cluster.errors import LexicastError

from .machines import MachineRoom, SshMachine
from .transcript import OperatorPage, matching, settled, shown

ROOT: Final = Path(__file__).resolve().parents[2]
OPERATOR: Final = "192.0.2.1"
# The addresses of ray_cluster.yaml, and one more. They are for documentation (RFC 5737): nobody has them.
MACHINES: Final = {
    "head": "192.0.2.10",
    "worker-1": "192.0.2.11",
    "worker-2": "192.0.2.12",
    "worker-3": "192.0.2.13",
}
FIRST: Final = ("head", "worker-1", "worker-2")
COMMAND_S: Final = 150.0
PAUSE_S: Final = 1.0
TOLD_LINES: Final = 30
TOLD_COLUMNS: Final = 300
ROOMS: Final = 20
UP: Final = "RAY_UP_enable_autoscaler_v2=0 ray up -y"


class FailedStepError(LexicastError):
    """A step did not do what it must, or something that must be seen was not."""


class Drill:
    """One run over one network."""

    def __init__(self, network: MachineRoom, transcript: OperatorPage) -> None:
        self._network = network
        self._transcript = transcript
        self.seconds: dict[str, float] = {}
        self.commands: list[tuple[str, float]] = []

    def run(self) -> None:
        """All steps. Raises FailedStepError, UnavailableError."""
        self._transcript.prose(
            "Written by `python -m lexicast.bench.ray_up --transcript docs/ray_up.md`, which runs what stands here; "
            "`tests/stories/test_ray_up.py` runs it again and compares. The machines are namespaces of one: each has "
            "an address, a host name, processes and a disk of its own, and an sshd. There is no systemd on them. "
            "`...` stands for lines that are left out, N for a number, PID and ID for what is another one each time."
        )
        self._start()
        self._serve()
        self._lose()
        self._grow()
        self._drain()
        self._stop()

    # -- the steps

    def _start(self) -> None:
        self._transcript.heading("Start")
        self._network.switch_on(FIRST)
        self._transcript.prose(
            "The operator has `ray_cluster.yaml` and a key by which ssh reaches the three machines. A token for Ray's "
            "processes; and, since devices are elsewhere, a configuration that lets in MQTT clients of other machines."
        )
        yaml = (ROOT / "ray_cluster.yaml").read_text(encoding="utf-8")
        (self._network.operator.home / "ray_cluster.yaml").write_text(yaml, encoding="utf-8")
        self._do("(umask 077; ray get-auth-token --generate > /dev/null 2>&1)")
        self._do(
            "printf '[mqtt]\\nallow_anonymous = \"always\"\\n[security]\\ninsecure = true\\n' |\n"
            "    ssh 192.0.2.10 'umask 077; mkdir -p lexicast; cat > lexicast/lexicast.toml'"
        )
        began = time.monotonic()
        self._do(f"{UP} ray_cluster.yaml", show="No head node|Ray runtime started|^New status", must="up-to-date")
        self._do(
            "ssh 192.0.2.10 'until grep -q serves lexicast/up.log; do sleep 0.2; done; cat lexicast/up.log'",
            show="^!|^lexicast .* serves|^  ",
            must="MQTT +mqtt://192.0.2.10:1883 mqtt://192.0.2.11:1883 mqtt://192.0.2.12:1883",
        )
        self.seconds["up_s"] = time.monotonic() - began

    def _serve(self) -> None:
        self._transcript.heading("A session on one node, publications on another")
        self._transcript.prose(
            "A client with a persistent session, ann, comes to worker-2 and goes again; then twenty rooms tell "
            "something to worker-1. Each QoS 1 publication is acknowledged when two nodes have it on disk."
        )
        self._leave_a_session("192.0.2.12", "ann")
        self._publish("192.0.2.11", "warm")

    def _publish(self, host: str, payload: str) -> None:
        self._do(
            f"for room in $(seq {ROOMS}); do mosquitto_pub -h {host} -q 1 -t rooms/$room -m {payload} || echo lost; "
            "done; echo published",
            must="published",
            must_not="lost",
        )

    def _leave_a_session(self, host: str, client: str) -> None:
        self._do(f"mosquitto_sub -h {host} -i {client} -c -q 1 -t 'rooms/#' -E")

    def _receive(self, host: str, client: str, *payloads: str) -> None:
        """A session that was left gets the publications that it missed, all of them and each once."""
        count = ROOMS * len(payloads)
        seen = self._do(f"mosquitto_sub -h {host} -i {client} -c -q 1 -t 'rooms/#' -C {count} -W 60 | sort | uniq -c")
        if [line.split() for line in seen] != [[str(ROOMS), payload] for payload in payloads]:
            raise FailedStepError(f"the session must get {ROOMS} each of {' and '.join(payloads)}, got {seen}")

    def _lose(self) -> None:
        self._transcript.heading("A machine loses its power")
        self._transcript.prose(
            "The plug of worker-2 is pulled, with the session's broker and a third of the coordinators on it. Nobody "
            "does anything about it. Publications go on, and the client finds its session, and all that it missed, "
            "at the head."
        )
        self._transcript.command("# worker-2 is off", [])
        self._machine("worker-2").switch_off()
        began = time.monotonic()
        self._publish("192.0.2.11", "cold")
        self._receive("192.0.2.10", "ann", "cold", "warm")
        self.seconds["lose_s"] = time.monotonic() - began
        self._see("worker-2 is away")

    def _see(self, told: str) -> None:
        """Wait until the head's `lexicast up` tells this."""
        self._do(
            f"ssh 192.0.2.10 'until grep -m 1 \"{told}\" lexicast/up.log; do sleep 0.2; done'",
            must=f"^{re.escape(told)}",
        )

    def _nodes(self, **states: str) -> None:
        """What `lexicast node list` says in the end: on a busy machine Ray takes a node for gone now and then."""
        line = "ssh 192.0.2.10 lexicast node list --data-dir lexicast | awk '{print $1, $2}'"
        wanted = ["node state", *[f"{name.replace('_', '-')} {state}" for name, state in states.items()]]
        until = time.monotonic() + COMMAND_S
        while (seen := self._type(line)) != wanted:
            if time.monotonic() > until:
                raise FailedStepError(f"nodes are {seen}, and must be {wanted}")
            time.sleep(PAUSE_S)
        self._transcript.command(line, seen)

    def _grow(self) -> None:
        self._transcript.heading("One more machine, and the lost one again")
        self._transcript.prose(
            "worker-2 has power again, and worker-3 is new. With `--no-restart` Ray and lexicast run on: the head "
            "starts Ray on the new machine, and on the one that was away; lexicast makes copies there, and both lead "
            "their share."
        )
        self._transcript.command("# worker-2 and worker-3 are on", [])
        self._network.switch_on(["worker-2", "worker-3"])
        began = time.monotonic()
        self._workers(11, 12, 13)
        self._do(f"{UP} --no-restart ray_cluster.yaml", show="not be restarted|^New status", must="up-to-date")
        self._see("worker-3 serves")
        self.seconds["grow_s"] = time.monotonic() - began
        self._see("worker-2 serves")
        self.seconds["back_s"] = time.monotonic() - began
        self._nodes(head="serves", worker_1="serves", worker_2="serves", worker_3="serves")
        self._leave_a_session("192.0.2.13", "bob")
        self._publish("192.0.2.12", "new")

    def _workers(self, *last_bytes: int) -> None:
        """Change the yaml's workers."""
        addresses = ", ".join([f"192.0.2.{last}" for last in last_bytes])
        self._do(
            f"sed -i 's/worker_ips: .*/worker_ips: [{addresses}]/; "
            f"s/^\\(m.._workers\\): .*/\\1: {len(last_bytes)}/' ray_cluster.yaml"
        )

    def _drain(self) -> None:
        self._transcript.heading("One machine fewer")
        self._transcript.prose(
            "worker-3 leaves: the others take over what it leads and holds, and its clients, bob's session too; then "
            "the head forgets the machine, Ray is stopped there, and it is none of the cluster's any more."
        )
        began = time.monotonic()
        self._do("ssh 192.0.2.10 lexicast node drain worker-3 --data-dir lexicast", must="worker-3 is drained")
        self.seconds["drain_s"] = time.monotonic() - began
        self._nodes(head="serves", worker_1="serves", worker_2="serves", worker_3="drained")
        self._workers(11, 12)
        self._do(f"{UP} --no-restart ray_cluster.yaml", show="not be restarted|^New status", must="up-to-date")
        self._do("ssh 192.0.2.13 ray stop > /dev/null 2>&1")
        self._do("ssh 192.0.2.10 lexicast node remove worker-3 --data-dir lexicast", must="^worker-3")
        self._nodes(head="serves", worker_1="serves", worker_2="serves")
        self._publish("192.0.2.11", "fewer")
        self._receive("192.0.2.10", "bob", "fewer", "new")

    def _stop(self) -> None:
        self._transcript.heading("Stop")
        self._transcript.prose(
            "lexicast first, cleanly; `ray down` stops Ray on the head alone. On the workers nothing is left by then "
            "that would have to be waited for."
        )
        began = time.monotonic()
        self._do("ray exec ray_cluster.yaml 'lexicast down --data-dir ~/lexicast'", show="^stopped", must="^stopped")
        self._do("ray down -y ray_cluster.yaml", show="^Destroying|No nodes remaining", must="No nodes remaining")
        self._do("for worker in 192.0.2.11 192.0.2.12; do ssh $worker ray stop --force > /dev/null 2>&1; done")
        self._do(
            "for last in 10 11 12 13; do echo 192.0.2.$last: $(ssh 192.0.2.$last 'pgrep -c raylet'); done",
            must="^192.0.2.10: 0$",
            must_not=": [1-9]",
        )
        self.seconds["down_s"] = time.monotonic() - began

    # -- their means

    def _machine(self, name: str) -> SshMachine:
        return self._network.machines[name]

    def _do(self, line: str, *, show: str = "", must: str = "", must_not: str = "") -> list[str]:
        """Type a line on the operator's machine. `show`, `must`, `must_not`: patterns of lines of its output."""
        seen = self._type(line)
        if (must and not matching(seen, must)) or (must_not and matching(seen, must_not)):
            wanted = f"{must!r} must be seen" + f", {must_not!r} must not" * bool(must_not)
            raise FailedStepError(f"{wanted}: {line}\n{tail(chr(10).join(seen).encode())}")
        self._transcript.command(line, shown(seen, show) if show else seen)
        return seen

    def _type(self, line: str) -> list[str]:
        """What a line of shell says on the operator's machine. Raises FailedStepError where it fails."""
        began = time.monotonic()
        try:
            done = subprocess.run(
                self._network.operator.command(line),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise FailedStepError(f"not done after {COMMAND_S:.0f} s: {line}\n{tail(error.output or b'')}") from None
        self.commands.append((line, time.monotonic() - began))
        seen = settled(done.stdout)
        if done.returncode:
            raise FailedStepError(f"ended with {done.returncode}: {line}\n{tail(done.stdout.encode())}")
        return seen


def tail(output: bytes) -> str:
    """What is told of an output that was not the right one."""
    lines = output.decode(errors="replace").splitlines()[-TOLD_LINES:]
    return "\n".join([line[:TOLD_COLUMNS] for line in lines])
