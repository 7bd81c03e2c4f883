"""The environment of a job: the cluster's Ray joined, Spark started in it, quietly, and ended.

    with spark_session(data_dir=...) as spark:
        lexicast.history(spark, "flights/#").count()

The environment (`lexicast.actors.launch.spark_environment`) is set before Ray starts. Where Ray was started by somebody
else without it, the Java options reach Spark's processes through Spark's own configuration as well; Java itself has to
be on that node's PATH.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ray

from lexicast.actors.client.address import ADDRESS_VARIABLE, DATA_DIR_VARIABLE, own_ray_address
from lexicast.actors.launch import ray_nodes
from lexicast.actors.launch.spark_environment import JAVA_OPTIONS, prepare_spark
from lexicast.cluster.config.tables import NodeConfig
from lexicast.cluster.errors import UnavailableError, UsageError

from ..history.dataframe import release_all, warm
from ..history.reading import places, warm_up, yield_all_spark
from .errors import first_line
from .job_folder import forget_libraries_everywhere, java_option, job_folder, make_everywhere, remove_everywhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTORS: Final = 1
EXECUTOR_CORES: Final = 1
EXECUTOR_MEMORY: Final = "1g"
DRIVER_MEMORY: Final = "768m"  # the JVM beside this Python; results are collected through it
# Spark's start takes 13 to 35 s on two cores; one that hangs (no Java on a node) would be waited for for ever.
START_TIMEOUT_S: Final = 180.0
STDERR: Final = 2
ONE_SPARK: Final = "RAY_APP_MASTER exists"

_OPTIONS: Final = " ".join(JAVA_OPTIONS)


def configuration(shuffle_partitions: int, folder: Path) -> dict[str, str]:
    """Spark's settings. `folder`: for what is temporary.

    Few shuffle partitions: a machine of lexicast's kind has few cores, and each costs 10 ms.
    """
    options = f"{_OPTIONS} {java_option(folder)}"
    return {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.executor.extraJavaOptions": options,
        "spark.driver.extraJavaOptions": options,
        "spark.ray.raydp_app_master.extraJavaOptions": options,
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": "8",
    }


def join_ray(address: str | None, data_dir: str | os.PathLike[str] | None) -> bool:
    """Connect this process to the Ray of a running cluster, found as `lexicast.connect` finds it.

    False when it was connected. Raises LexicastError.
    """
    if ray.is_initialized():
        return False
    if address is None and data_dir is None:
        address = os.environ.get(ADDRESS_VARIABLE) or None
    if address is None:
        folder = os.fspath(data_dir or os.environ.get(DATA_DIR_VARIABLE, ""))
        address = own_ray_address(NodeConfig(data_dir=folder).data_path())
    with quiet():  # Ray's own complaints of a Ray that does not let it in, one a second
        # RayDP gives its actors names of its own: two jobs at a time need two namespaces.
        ray_nodes.connect_ray(address, namespace=f"lexicast-job-{uuid.uuid4().hex[:8]}")
    return True


@contextmanager
def spark_session(
    address: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    executors: int = EXECUTORS,
    executor_cores: int = EXECUTOR_CORES,
    executor_memory: str = EXECUTOR_MEMORY,
    configs: dict[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Spark inside the Ray of the cluster at `address` ("auto", "HOST:PORT") or on `data_dir`; ends with the block.

    One Spark a process. `executors` processes of `executor_cores` CPUs and `executor_memory` (as "1g") each, which
    Ray has to have free. Raises UnavailableError (no Spark, no Java, no cluster, no room), UsageError.
    """
    if address is not None and data_dir is not None:
        raise UsageError("give an address or a data_dir, not both")
    if executors < 1 or executor_cores < 1:
        raise UsageError(f"executors={executors}, executor_cores={executor_cores}: at least 1 each")
    prepare_spark()
    joined = join_ray(address, data_dir)
    try:
        # Before Spark: a Ray without a cluster is told at once, and RayDP makes Ray look for the classes of actors that
        # are found later in this process, where it mistakes their methods' arguments.
        places()
        _check_room(executors, executor_cores)
        job = f"lexicast-{uuid.uuid4().hex[:8]}"
        folder = job_folder(job)
        make_everywhere(folder)
        try:
            settings = {**configuration(max(2, 2 * executors * executor_cores), folder), **(configs or {})}
            spark = _start(job, executors, executor_cores, executor_memory, settings)
            try:
                yield spark
            finally:
                release_all()
                forget_libraries_everywhere(folder)
                with quiet():
                    _stop()
        finally:
            remove_everywhere(folder)
    finally:
        if joined:
            ray_nodes.disconnect_ray()


def _check_room(executors: int, cores: int) -> None:
    """Spark waits without end for CPUs that Ray does not have."""
    cluster_resources: Callable[[], dict[str, float]] = ray.cluster_resources
    has = cluster_resources().get("CPU", 0.0)
    if executors * cores > has:
        raise UnavailableError(
            f"Spark was to have {executors} x {cores} CPUs, and this Ray has {has:.0f}: use fewer executors"
        )


def _start(name: str, executors: int, cores: int, memory: str, settings: dict[str, str]) -> SparkSession:
    import raydp

    watch = threading.Timer(START_TIMEOUT_S, _give_up, [os.dup(STDERR)])
    watch.daemon = True
    watch.start()
    try:
        with quiet():
            spark: SparkSession = raydp.init_spark(name, executors, cores, memory, configs=settings)
        spark.sparkContext.setLogLevel("OFF")
        readers = warm_up()
        warm(spark)  # also waits for the first executor, for which Ray may have no CPU left
        ray.wait(readers, num_returns=len(readers))
        yield_all_spark()
    except Exception as error:
        _stop()
        if ONE_SPARK in str(error):
            raise UnavailableError(
                f"a Spark runs in Ray's namespace {ray.get_runtime_context().namespace} already: end it, or connect to "
                "Ray with a namespace of your own"
            ) from error
        raise UnavailableError(f"Spark does not start: {first_line(error)}") from error
    finally:
        watch.cancel()
    return spark


def _give_up(stderr: int) -> None:
    """The main thread waits inside Ray and cannot be told: the one way out is the process's end."""
    text = (
        f"lexicast: Spark has not started within {START_TIMEOUT_S:.0f} s: are the CPUs that it needs taken by others "
        "(`ray status`), or is Java 17 not on the PATH of every node?\n"
    )
    os.write(stderr, text.encode())
    os._exit(1)


def _stop() -> None:
    import raydp

    with suppress(Exception):  # its actors may be gone already: then there is nothing to stop
        raydp.stop_spark()


@contextmanager
def quiet() -> Iterator[None]:
    """Spark's processes write to our descriptors from outside Python: these lead nowhere meanwhile.

    A process that is started within goes on writing there, for all its life. Python's own output goes on.
    """
    for name in ("py4j", "raydp", "pyspark"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (*kept, nowhere):
            os.close(descriptor)
