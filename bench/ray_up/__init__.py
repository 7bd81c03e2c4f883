"""The drill of `ray up`, machines that are namespaces: `python -m lexicast.bench.ray_up --help`."""
