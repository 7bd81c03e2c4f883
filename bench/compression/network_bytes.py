"""The bytes of a whole network: thesis equation 5.2.1.

    B.u = |M.u| (1 + |S|)
    B.c = |M.c| (1 + |S|) + |DC| (|P| + |S|)
    BR  = 100 - 100 B.c / B.u

|M.u| is the total of the payloads as the publishers' programs wrote them, |M.c| of the payloads as sent, the tag byte
included, |DC| of the dictionaries as sent (`Dictionary.pack`) with their bindings; P publishers, S subscribers. Each
message crosses one publisher's link and each subscriber's; each dictionary crosses every link once.
"""

from __future__ import annotations


def uncompressed_bytes(raw_bytes: int, subscribers: int) -> int:
    """B.u."""
    return raw_bytes * (1 + subscribers)


def compressed_bytes(sent_bytes: int, dictionary_bytes: int, publishers: int, subscribers: int) -> int:
    """B.c."""
    return sent_bytes * (1 + subscribers) + dictionary_bytes * (publishers + subscribers)
