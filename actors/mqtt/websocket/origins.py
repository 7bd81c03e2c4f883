"""Which web pages may connect: a browser says in `Origin` whose page it is that wants to. Pure.

A page that somebody looks at could connect to a broker on that person's machine, where nobody has to log in
(mqtt.allow_anonymous = "loopback"), or in their network; browsers ask nobody, and leave the decision to the server (RFC
6455, section 10.2). So only pages are let in that the operator has named (mqtt.ws_origins), and those of the broker's
own host. The latter by its address or as localhost; by another name only from other machines, since whoever owns a name
can have it lead to any address (DNS rebinding), this machine's too.

Who sends no Origin is no page, and decides by itself what it sends.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

ANY: Final = "*"


def origin_may_connect(origin: str | None, host: str, listed: Collection[str], same_machine: bool) -> bool:
    """`origin`, `host`: those headers; None: there is no Origin. `listed`: mqtt.ws_origins, or "*" for all pages.
    `same_machine`: the connection comes from this machine."""
    if origin is None or ANY in listed or origin.lower() in {each.lower().rstrip("/") for each in listed}:
        return True
    page, own = _host(origin), _host(f"//{host}")
    return page != "" and page == own and (not same_machine or _is_nobodys_name(page))


def _host(url: str) -> str:
    """The host of a URL, "" where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_nobodys_name(host: str) -> bool:
    """Whether nobody can have `host` lead elsewhere."""
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761, section 6.3
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
