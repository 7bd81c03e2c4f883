"""What a rule a device costs dictionaries: `python -m lexicast.bench.security.dictionary_rights --data DIR`.

With `pattern readwrite devices/%u/#` each device reads its own topics and one operator all. Its family's dictionary
may go to the devices only where nothing is in it that fewer than `compression.publishers_min` of them have sent
(`compression.shared_text`). Of each set of messages, published by DEVICES devices in turn, on one link: how many % of
the bytes PREDICT saves without rules, with them, and what DEFLATE saves, which is what devices would have to do with
else. `rules_br_loss` is the mean difference in points.

Devices in turn have more in common than most: `--publishers field` takes the first text that the messages of a set have
in quotes as their device's name, where there is one.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lexicast.actors.sampling.family import SENT_MAX
from lexicast.bench.compression.offline_runs import OfflineRun, simulate, train_now
from lexicast.bench.data.corpora import of_folder
from lexicast.compression.codecs import Deflate
from lexicast.compression.dictionary import Dictionary
from lexicast.compression.maintenance import Due
from lexicast.compression.predict import Predict
from lexicast.compression.shared_text import Sent, SharedText

DEVICES: Final = 30
PUBLISHERS_MIN: Final = 3
MESSAGES: Final = 4_000
_QUOTED: Final = re.compile(rb'"[^"]*"\s*:\s*"([^"]+)"')


def publishers_of(messages: Sequence[bytes], by_field: bool) -> list[str]:
    """Who sends each message."""
    names = []
    for at, message in enumerate(messages):
        found = _QUOTED.search(message) if by_field else None
        names.append(found[1].decode(errors="replace") if found else f"device-{at % DEVICES}")
    return names


def run_with_rules(messages: Sequence[bytes], publishers: Sequence[str]) -> OfflineRun:
    """PREDICT, nothing in whose dictionaries fewer than PUBLISHERS_MIN have sent."""

    def trainer(due: Due, seen: int) -> tuple[Dictionary | None, float]:
        sent = [Sent(*one) for one in zip(publishers[:seen], messages[:seen], strict=True)][-SENT_MAX:]
        shared = SharedText(sent, PUBLISHERS_MIN)
        return train_now(due._replace(shared=shared), seen) if shared.enough else (None, 0.0)

    return simulate(messages, Predict(), trainer=trainer)


def measure(folder: Path, messages_max: int = MESSAGES, by_field: bool = False) -> dict[str, Any]:
    """Of each set: % saved without rules, with rules, and by DEFLATE; and the mean loss."""
    sets: dict[str, dict[str, float]] = {}
    for corpus in of_folder(folder, messages_max):
        messages = corpus.messages
        deflate = Deflate()
        sent = sum(1 + len(deflate.encode(message)[1]) for message in messages)
        without = simulate(messages, Predict())
        ruled = run_with_rules(messages, publishers_of(messages, by_field))
        sets[corpus.name] = {
            "without_rules": round(without.reduction(), 2),
            "with_rules": round(ruled.reduction(), 2),
            "deflate": round(100 - 100 * sent / sum(map(len, messages)), 2),
            "training_cpu_s": round(ruled.sampling_cpu_s, 2),
            "training_cpu_s_without_rules": round(without.sampling_cpu_s, 2),
        }
        print(corpus.name, sets[corpus.name], flush=True)
    losses = [one["without_rules"] - one["with_rules"] for one in sets.values()]
    return {"sets": sets, "rules_br_loss": round(sum(losses) / len(losses), 2) if losses else None}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="What a rule a device costs dictionaries.")
    parser.add_argument("--data", type=Path, required=True, help="a folder of sets of messages, one a line")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of each set")
    parser.add_argument("--publishers", choices=("turn", "field"), default="turn")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    given = parser.parse_args()
    found = measure(given.data, given.messages, given.publishers == "field")
    print("rules_br_loss", found["rules_br_loss"])
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
