"""Who subscribes in the drills of content subscriptions: all makes, each with a condition of its own, and one without.

The one without a condition is at one broker, the first: to the others coordinators withhold what matchers say that
nobody there wants. Where that broker is lost it goes to another one, which gets everything from then on.
"""

from __future__ import annotations

from typing import Final

from ..audit import PYTHON, Party
from ..load import AIOMQTT, MOSQUITTO, PAHO, PUBLISHERS, Cast
from .messages import HALF, ContentMessages

CONTROL: Final = "paho-all-1"
CONTENT_CAST: Final = Cast(
    pythons=(
        Party("python-0", PYTHON, 0, "part = 0"),
        Party("python-1", PYTHON, 1, "reading.celsius < -6"),
        Party("python-2", PYTHON, 2, "medium = 'steam'"),
    ),
    publishers=PUBLISHERS,
    # At the first, second and third broker, and so on.
    subscribers=(
        Party(CONTROL, PAHO, 1),
        Party("paho-sub-1", PAHO, 1, "part = 3"),
        Party("paho-sub-2", PAHO, 2, "part > 6 AND part <= 7"),
        Party("aiomqtt-half-1", AIOMQTT, 1, HALF),
        Party("mosquitto-sub-1", MOSQUITTO, 1, "medium = 'wind' AND publisher LIKE '%-1'"),
        Party("aiomqtt-sub-1", AIOMQTT, 1, "part = 9 OR reading.celsius > 28"),
    ),
    messages=ContentMessages(),
)
