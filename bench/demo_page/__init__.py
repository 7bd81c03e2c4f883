"""The demo seen on the page, flights over a map: `lexicast demo --page`."""
