"""`python -m lexicast.testing.simulate --help`: whole clusters from seeds, with mixed faults, and an auditor."""

from __future__ import annotations

import sys

from lexicast.actors.testing.simulator.command import main

if __name__ == "__main__":
    sys.exit(main())
