"""The example channel, REAPS, section II: which emergencies are near me, and where is the nearest shelter?

Subscribers move: each publishes where it is to `locations/USER`, as {"lat", "lon"}. Emergencies are published to
`emergencies/KIND`, as {"id", "kind", "lat", "lon"}. Shelters are a fixed table. A user subscribes to
`channel_topic("EmergenciesNearMe", {"user": "ann", "km": 5})` and gets each emergency once it is within reach: because
it has just happened there, or because the user has come near.
"""

from __future__ import annotations

from typing import Final

from .definitions import Channel, PublicationTable

NAME: Final = "EmergenciesNearMe"

# Degrees to kilometres on a plane: right to a few metres over the distances that matter here.
SQL: Final = """
SELECT e.id, e.kind, round(e.km, 2) AS km,
       min_by(s.name, power(s.lat - e.at_lat, 2) + power(s.lon - e.at_lon, 2)) AS shelter
FROM (
    SELECT r.id, r.kind, l.lat AS at_lat, l.lon AS at_lon,
           111.2 * sqrt(power(r.lat - l.lat, 2) + power((r.lon - l.lon) * cos(radians(l.lat)), 2)) AS km
    FROM emergencies r CROSS JOIN locations l
    WHERE l.topic = concat('locations/', :user)
) e CROSS JOIN shelters s
WHERE e.km <= :km
GROUP BY e.id, e.kind, e.km
"""

SHELTERS: Final = """name,lat,lon
Anteater Recreation Center,33.6432,-117.8270
Irvine High School,33.7003,-117.7790
Lakeview Senior Center,33.6790,-117.7939
University Park Library,33.6590,-117.8205
"""


def emergencies_near_me(period_s: float = 10.0) -> Channel:
    """The channel: emergencies of the last 10 minutes, where everybody was within the last hour."""
    return Channel(
        NAME,
        SQL,
        period_s,
        history={
            "emergencies": PublicationTable("emergencies/+", 600.0, "id STRING, kind STRING, lat DOUBLE, lon DOUBLE")
        },
        state={"locations": PublicationTable("locations/+", 3_600.0, "lat DOUBLE, lon DOUBLE")},
        tables={"shelters": SHELTERS},
    )
