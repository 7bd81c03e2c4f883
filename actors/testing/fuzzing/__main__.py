"""The fuzzer in a process in which nothing that it watches was imported yet."""

from __future__ import annotations

import sys

from .command import fuzz

if __name__ == "__main__":
    sys.exit(fuzz(sys.argv[1:]))
