"""The metrics of a node for Prometheus, in its conventions, made of what the node's actors say about themselves.

Every node tells of its own actors alone, so sums over nodes count nothing twice; families are FAMILIES_MAX at the most,
the others are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from .metric_rows import ANY, COUNTER, HISTOGRAM, METRICS, NODE, MetricRow, Said

FAMILIES_MAX: Final = 50
OTHERS: Final = "(others)"


class NodeMetrics:
    """What prometheus_client encodes: `collect`. Made once a console, since families keep the names that they have."""

    def __init__(self) -> None:
        self._families: set[str] = set()

    def of(self, actors: Mapping[str, tuple[str, Said]], node: Said) -> _Collected:
        """`actors`: (kind, what it says) by name, see `ConsoleView.own_actors`; `node`: what the console knows."""
        return _Collected({name: (kind, self._with_families(said)) for name, (kind, said) in actors.items()}, node)

    def _with_families(self, said: Said) -> Said:
        found = said.get("families")
        if not found:
            return said
        raw: dict[str, float] = {}
        sent: dict[str, float] = {}
        for name, family in found.items():
            shown = self._shown(name)
            raw[shown] = raw.get(shown, 0) + family["raw_bytes"]
            sent[shown] = sent.get(shown, 0) + family["sent_bytes"] + family["dictionary_bytes"]
        return {**said, "family_raw": raw, "family_sent": sent}

    def _shown(self, name: str) -> str:
        if name not in self._families and len(self._families) < FAMILIES_MAX:
            self._families.add(name)
        return name if name in self._families else OTHERS


class _Collected:
    """The metrics of one scrape."""

    def __init__(self, actors: Mapping[str, tuple[str, Said]], node: Said) -> None:
        self._actors = actors
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """All of them, those without a series left out."""
        for row in METRICS:
            metric = self._metric(row)
            if metric.samples:
                yield metric

    def _metric(self, row: MetricRow) -> Metric:
        if row.of == NODE:
            value = row.read(self._node)
            gauge = GaugeMetricFamily(row.name, row.text)
            if isinstance(value, float):
                gauge.add_metric([], value)
            return gauge
        if row.kind == HISTOGRAM:
            return self._histogram(row)
        labels = ["actor", row.label] if row.label else ["actor"]
        family = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
        metric = family(row.name, row.text, labels=labels)
        for name, (kind, said) in self._actors.items():
            value = row.read(said) if row.of in (ANY, kind) else None
            if isinstance(value, float):
                metric.add_metric([name], value)
            for label, each in value if value is not None and not isinstance(value, float) else ():
                metric.add_metric([name, label], each)
        return metric

    def _histogram(self, row: MetricRow) -> Metric:
        metric = HistogramMetricFamily(row.name, row.text, labels=["actor"])
        for name, (kind, said) in self._actors.items():
            if kind == row.of and (commits := said.get("commits")):
                below, buckets = 0, []
                limits = [*map(str, commits["limits_s"]), "+Inf"]
                for limit, count in zip(limits, commits["counts"], strict=True):
                    below += count
                    buckets.append((limit, below))
                metric.add_metric([name], buckets, commits["sum_s"])
        return metric
