"""The Ray that `lexicast up` starts: how much of it is left for jobs."""

from __future__ import annotations

from lexicast.actors.launch.ray_nodes import ACTOR_CPUS, embedded_cpus


def test_our_actors_take_nothing_of_the_machines_cpus() -> None:
    for cores in (1, 2, 3, 64):
        for actors in (1, 4, 40, 400):
            left = embedded_cpus(cores, actors) - actors * ACTOR_CPUS
            assert cores <= left < cores + 1
