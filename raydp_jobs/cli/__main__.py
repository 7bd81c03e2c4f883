"""`python -m lexicast.raydp_jobs.cli`."""

from __future__ import annotations

from .main import main

if __name__ == "__main__":
    main()
