"""The engine of a broker: its parts, put together once, between its listeners and the coordinators.

Inwards `coordinators` routes publications to the pipeline of their topic's group. Outwards `live` gives each block to
the fan-outs (the plain one, and that of conditions) and the cache, and `subscriptions` says who gets what. What
coordinators tell beside is handed on by `coordinator_events`.
"""

from __future__ import annotations

from lexicast.cluster.blocks import Block
from lexicast.cluster.clock import Clock
from lexicast.cluster.config.tables import Config
from lexicast.compression.codecs import payload_bytes_max
from lexicast.compression.wire import LAST_BROKER_ALIAS, AliasTable, Recoder

from .catching_up.block_cache import BlockCache
from .content.content_fanout import ContentFanout
from .content.predicate_table import PredicateTable
from .coordinators import Coordinators
from .dictionaries.keeper import DictionaryKeeper
from .dictionaries.link_choice import DictionaryLinks
from .dictionary_fetching import DictionaryFetching
from .encoding import BlockView, Encoder
from .fanout import Fanout
from .live_delivery import LiveDelivery
from .matching.event_columns import EventColumns
from .pipelines.stored_compression import StoredCompression
from .security.rights import Rights
from .shares.shared_members import SharedMembers
from .streaming import Streamer
from .subscriptions import Subscriptions


class BrokerEngine:
    """See the module's docstring. `streamer`: makes topic streams; None: they are turned off."""

    def __init__(self, name: str, incarnation: int, groups: int, config: Config, clock: Clock) -> None:
        self.name = name
        self.incarnation = incarnation
        self.groups = groups
        self.config = config
        self.clock = clock
        self.rights = Rights(has_rules=config.security.acl_file != "")
        self.recoder = Recoder(payload_bytes_max=payload_bytes_max(config.mqtt.packet_bytes_max))
        self.aliases = AliasTable(LAST_BROKER_ALIAS)
        opted_out = [name.encode() for name in config.compression.optout]
        self.dictionaries = DictionaryKeeper(self.recoder, clock, opted_out, config.compression.boundary_levels)
        known = self.dictionaries
        most = config.mqtt.topic_aliases_sent_max
        self.encoder = Encoder(self.recoder, self.aliases, known.newest, known.opted_out, known.newest_of_bytes, most)
        self.dictionary_links = DictionaryLinks(self.dictionaries, self.recoder, self.encoder.savings)
        self.stored_compression = self._stored_compression()
        self.streamer = self._streamer()
        self.fanout = Fanout(config.broker.routes_max, self.streamer, self.rights)
        self.rights.told.append(self.fanout.forget)
        self.predicates = PredicateTable()
        self.content = ContentFanout(self.predicates, config.broker.routes_max, self.rights)
        self.coordinators = Coordinators(groups, config.broker.routes_max, config.link.request_timeout_s)
        self.dictionary_fetching = DictionaryFetching(self.dictionaries, self.coordinators)
        cache = BlockCache(config.broker.cache_bytes_max)
        self.shares = SharedMembers(self.coordinators, config.link.request_timeout_s, self._view_dealt, cache.same)
        self.live = LiveDelivery(
            clock,
            self.dictionaries,
            self.dictionary_fetching.fetch,
            self.aliases,
            self.stored_compression,
            cache,
            self.fanout,
            self.content,
            self.encoder,
        )
        # What conditions ask of publications, where matchers are asked about them.
        self.event_columns = EventColumns(self.encoder, self.stored_compression) if config.node.matchers else None
        past_bytes_max = config.broker.cache_bytes_max
        self.subscriptions = Subscriptions(
            clock,
            self.coordinators,
            self.live,
            cache,
            self.fanout,
            self.content,
            self.encoder,
            past_bytes_max,
            self.event_columns,
        )
        if self.subscriptions.told_conditions is not None:
            self.subscriptions.told_conditions.far.incarnation = incarnation

    def _view_dealt(self, block: Block) -> BlockView:
        """What was compressed for the log here is not decompressed again."""
        raw = self.stored_compression.raw_kept(block) if block.meta.dictionaries else None
        return BlockView(block, self.clock.time_us(), raw)

    def _stored_compression(self) -> StoredCompression:
        compression = self.config.compression
        cpu_percent = compression.stored_cpu_percent if compression.enabled else 0
        return StoredCompression(self.recoder, self.dictionaries.newest, cpu_percent)

    def _streamer(self) -> Streamer | None:
        compression = self.config.compression
        if not (compression.enabled and compression.stream_records_per_s):
            return None
        newest, opted_out = self.dictionaries.newest, self.dictionaries.opted_out
        return Streamer(self.recoder, newest, opted_out, compression.stream_records_per_s, self.config.has_users)

    async def close(self) -> None:
        """End all links."""
        self.live.waiting.close()
        self.subscriptions.close()
        self.predicates.close()
        await self.coordinators.close()
