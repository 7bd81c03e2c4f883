"""Links: framed messages between actors, over TCP, Unix sockets or Ray calls, with heartbeats."""
