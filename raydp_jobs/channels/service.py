"""`lexicast channel run`: Spark, the cluster and the runner, put together."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from ..spark.environment import spark_session
from ..spark.errors import job_errors
from .backend_subscriptions import channel_subscriptions
from .bus import ChannelBus
from .questions import SparkQuestions
from .runner import ChannelRunner, answer_channels


def run_channels(console: Console, connect: Mapping[str, Any], executors: int, seconds: float | None) -> None:
    """Answer, or stand by, until Ctrl-C or SIGTERM, or for `seconds`. Raises LexicastError."""
    ended = threading.Event()
    # py4j writes pages to the root's log when Java ends; that it has is one line of ours.
    logging.getLogger().addHandler(logging.NullHandler())
    with (
        job_errors(),
        console.status("starting Spark") as spinner,
        spark_session(**connect, executors=executors) as spark,
    ):
        spinner.stop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        if seconds is not None:
            timer = threading.Timer(seconds, ended.set)
            timer.daemon = True
            timer.start()

        def tell(text: str) -> None:
            console.print(text, markup=False)

        questions = SparkQuestions(spark)
        with ChannelBus(connect) as bus:

            def make_runner() -> ChannelRunner:
                return ChannelRunner(bus, questions.ask, channel_subscriptions, tell)

            answer_channels(bus, make_runner, ended, tell)
