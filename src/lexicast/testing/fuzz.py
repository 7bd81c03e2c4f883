"""`python -m lexicast.testing.fuzz --help`: bytes from strangers, tried until something gives way."""

from __future__ import annotations

import sys

from lexicast.actors.testing.fuzzing.command import main

if __name__ == "__main__":
    sys.exit(main())
