"""What each packet of a connected client means, publications and PINGREQ aside (`mqtt_connection` sees to those)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .codec.packets import (
    PROTOCOL_ERROR,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUCCESS,
    AckRun,
    Auth,
    Connect,
    Disconnect,
    MqttProtocolError,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from .codec.properties import SESSION_EXPIRY_S
from .subscribing import change_subscriptions

if TYPE_CHECKING:
    from .connection import MqttConnection

_KINDS = {PubAck: PUBACK, PubRec: PUBREC, PubRel: PUBREL, PubComp: PUBCOMP}


def acks_in(connection: MqttConnection, run: AckRun) -> None:
    """Acknowledgements of success."""
    session, ids = connection.session, run.packet_ids
    if run.kind == PUBACK:
        session.on_pubacks(ids)
    elif run.kind == PUBREC:
        connection.reply(session.on_pubrecs(ids))
        return
    elif run.kind == PUBCOMP:
        session.on_pubcomps(ids)
    else:
        connection.publishing.release(ids)
        return
    connection.acknowledged()


def _ack_in(connection: MqttConnection, ack: PubAck | PubRec | PubRel | PubComp) -> None:
    """An acknowledgement with a reason of its own."""
    if isinstance(ack, PubRec) and ack.reason_code >= 0x80:
        connection.reply(connection.session.on_pubrecs([ack.packet_id], refused=True))
        connection.acknowledged()
        return
    acks_in(connection, AckRun(_KINDS[type(ack)], [ack.packet_id]))


def _change(connection: MqttConnection, packet: Subscribe | Unsubscribe) -> None:
    """What stands behind it is seen by it, and by nothing that it ends: it is placed and answered first."""
    connection.stall()
    connection.work(_change_all(connection, packet))


async def _change_all(connection: MqttConnection, packet: Subscribe | Unsubscribe) -> None:
    await change_subscriptions(connection.listener, connection, [packet, *connection.held_changes()])
    connection.go_on()


def _disconnect_in(connection: MqttConnection, packet: Disconnect) -> None:
    expiry = (packet.properties or {}).get(SESSION_EXPIRY_S)
    if expiry is not None:
        if expiry and not connection.session.expiry_s:
            raise MqttProtocolError(
                PROTOCOL_ERROR, "MQTT-3.14.2-2", "a session that was to end with its connection cannot be kept now"
            )
        connection.session.expiry_s = min(expiry, connection.listener.config.session_expiry_s_max)
    # Only "normal disconnection" takes the will back [MQTT-3.14.4-3], [MQTT-3.1.2-10].
    connection.end(with_will=packet.reason_code != SUCCESS, linger=False)


def _auth(connection: MqttConnection, packet: Auth) -> None:
    raise MqttProtocolError(PROTOCOL_ERROR, "MQTT-4.12.0-7", "no authentication method was agreed")


def _connect(connection: MqttConnection, packet: Connect) -> None:
    connection.begin(packet)


HANDLERS: dict[type, Callable[[MqttConnection, Any], None]] = {
    Connect: _connect,
    AckRun: acks_in,
    PubAck: _ack_in,
    PubRec: _ack_in,
    PubRel: _ack_in,
    PubComp: _ack_in,
    Subscribe: _change,
    Unsubscribe: _change,
    Disconnect: _disconnect_in,
    Auth: _auth,
}


def overtakes(packet: object) -> bool:
    """Whether it need not wait behind what waits: it acknowledges what was delivered."""
    return isinstance(packet, PubAck | PubRec | PubComp) or (isinstance(packet, AckRun) and packet.kind != PUBREL)
