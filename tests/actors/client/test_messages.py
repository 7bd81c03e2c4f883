"""Properties as users write them."""

from __future__ import annotations

import pytest

from lexicast.actors.client.messages import Properties, pack_properties, unpack_properties
from lexicast.cluster.errors import UsageError


def test_properties_there_and_back() -> None:
    properties = Properties((("a", "1"), ("a", "2")), "text/plain", "answer/here", b"\0\xff", True)
    packed = pack_properties(properties)
    assert packed is not None
    assert list(packed) == sorted(packed)
    assert unpack_properties({**packed, 999: "unknown"}) == properties
    assert properties.get("a") == "1"
    assert properties.get("b", "none") == "none"
    assert pack_properties({}) is None
    assert pack_properties(None) is None
    assert unpack_properties(None) is None


# -- addresses


@pytest.mark.parametrize(
    "properties",
    [
        Properties(user=(("unit", "km\0"),)),
        Properties(user=(("x" * 65_536, ""),)),
        Properties(content_type=7),  # type: ignore[arg-type]  # a wrong type is what it is about
        Properties(correlation_data=b"x" * 65_536),
    ],
)
def test_properties_that_nobody_could_be_sent_are_refused(properties: Properties) -> None:
    """A broker would refuse the publication, since no MQTT packet can carry them."""
    with pytest.raises(UsageError):
        pack_properties(properties)
