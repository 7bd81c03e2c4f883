"""A field model of what was learned, with as much in it as pays.

A row, a range of a histogram or a context is kept when what it saves on `weight` times the samples is more than it
takes in the model, packed. Then for each number the earlier numbers of the message from which it follows (`relations`),
for each field the earlier field that foretells it best (what is foretold leaves the field's own table); for streams
what comes again and what is near what was before (`recurrence`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from math import log2
from typing import Final, NamedTuple

from .alphabets import alphabet_of, run_slots
from .model import Context, Field, FieldsModel, NumberField, Pattern, Reference, RunField
from .plan import PACKED_BITS, ROW_BYTES, FieldPlan, Foreseen, mean_bits
from .positions import with_positions
from .ranges import histogram_cost, learn_histogram, number_bits
from .recurrence import Comings, Recurrence, learn_recurrence
from .relations import EARLIER_MAX, Relations
from .serialised import LETTERS_MAX
from .structure import MessageStructure, Node
from .vocabulary import SPECIALS, WORD_BYTES_MAX, Vocabulary, text_tokens

_TEXT_BITS: Final = 6.0
_CHARACTER_BITS: Final = 5.0
_FIRST_MESSAGES: Final = 20


def _all(text: bytes) -> bool:
    return True


def _comes_again(node: Node) -> bool:
    """Whether it is ever what it was: else nothing can be learned from what stands with it."""
    return len(node.counted) < len(node.values)


class _Foretold(NamedTuple):
    saved: float
    source: int
    contexts: dict[bytes, Foreseen]


class Building:
    """One model."""

    def __init__(
        self,
        learned: MessageStructure,
        relations: Relations,
        comings: Comings,
        weight: float,
        admits: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`relations`, `comings`: of what was learned. `admits`: whether a text may be in the model; None: all may."""
        self._admits = admits or _all
        self._learned = learned
        self._weight = weight
        self._plans = [FieldPlan(node) for node in learned.nodes]
        self._relations = relations
        self._comings = comings
        self._letters = 0

    def model(self) -> FieldsModel:
        """The model."""
        for plan in reversed(self._plans):
            self._tables(plan, list(range(len(plan.node.values))))
        for plan in self._plans:
            self._foretell(plan)
        recurrences = learn_recurrence(self._plans, self._comings, self._weight)
        vocabulary = self._vocabulary()
        fields: dict[int, Field] = {}
        rates = [1] * len(self._plans)
        for plan in reversed(self._plans):
            fields[plan.node.id] = self._field(plan, recurrences[plan.node.id], fields)
            rates[plan.node.id] = recurrences[plan.node.id].rate
        return FieldsModel(fields[0], [fields[id] for id in range(len(fields))], rates, vocabulary)

    def _tables(self, plan: FieldPlan, at: Sequence[int]) -> None:
        """Rows, counts and histogram for the values with these indices: those that no context foretells."""
        node = plan.node
        counted = Counter([node.values[index] for index in at])
        total = max(1, counted.total())
        plan.rows = [
            (value, counted[value])
            for value, _ in node.repeated
            if counted[value] > 1 and self._pays(plan, value, counted[value], total) and self._admits(value)
        ]
        plan.rows.sort()
        kept = dict(plan.rows)
        alternatives = [0] * (len(node.patterns) + 3)
        plan.texts = Counter()
        which: dict[bytes, int] = {}
        for value, count in counted.items():
            if value not in kept:
                which[value] = self._alternative(node, value)
                alternatives[which[value]] += count
                if which[value] == len(node.patterns) + 2:
                    plan.texts[value] += count
        has = [True] * len(node.patterns) + [bool(node.numbers), node.run is not None, True]
        counts = [max(1, count) for count, there in zip(alternatives, has, strict=True) if there]
        plan.counts = [count for _, count in plan.rows] + counts
        if node.numbers:
            self._number(plan, [index for index in at if node.values[index] in node.numbers])
        self._cost(plan, kept, which, alternatives)

    def _alternative(self, node: Node, value: bytes) -> int:
        """As `Field` puts it: patterns, number, run, text."""
        patterns = len(node.patterns)
        if value in node.numbers:
            return patterns
        fitting = node.fitting(value)
        if fitting >= 0:
            return fitting
        return patterns + 1 if node.run is not None and node.run.fits(value) else patterns + 2

    def _pays(self, plan: FieldPlan, value: bytes, count: int, total: int) -> bool:
        saved = count * (self._text_bits(plan.node, value) - log2(total / count))
        return saved * self._weight > PACKED_BITS * (len(value) + ROW_BYTES)

    def _text_bits(self, node: Node, value: bytes) -> float:
        """What a value that is no row and no number costs."""
        fitting = node.fitting(value)
        if fitting >= 0:
            _, fields = node.patterns[fitting]
            return sum([mean_bits(self._plans[field.id]) for field in fields])
        if node.run is not None and node.run.fits(value):
            return log2(run_slots(node.run.alphabet, len(value)))
        return _TEXT_BITS + _CHARACTER_BITS * len(value)

    def _cost(self, plan: FieldPlan, kept: dict[bytes, int], which: dict[bytes, int], alternatives: list[int]) -> None:
        """Fills `plan.bits`: all values, those that are foretold as if they were not."""
        node = plan.node
        total = sum(plan.counts)
        texts: dict[bytes, float] = {}
        for value in node.counted:
            count = kept.get(value)
            if count is None:
                at = which[value] if value in which else self._alternative(node, value)
                bits = log2(total / max(1, alternatives[at]))
                texts[value] = bits if value in node.numbers else bits + self._text_bits(node, value)
            else:
                texts[value] = log2(total / count)
        plan.bits = [texts[value] for value in node.values]
        if plan.histogram is not None:
            numbers = [index for index, value in enumerate(node.values) if value in node.numbers]
            for index, number in zip(numbers, self._differences(plan, plan.references, numbers), strict=True):
                plan.bits[index] += number_bits(plan.histogram, number)

    def _number(self, plan: FieldPlan, at: Sequence[int]) -> None:
        """The histogram and the references of a number."""
        plain = self._differences(plan, (), at)
        plan.references = ()
        plan.histogram = learn_histogram(plain or [0], self._weight)
        if len(plain) < 4:
            return
        plan_references = self._relations.best(plan.node, at, self._weight)
        if plan_references:
            differences = self._differences(plan, plan_references, at)
            histogram = learn_histogram(differences, self._weight)
            told = histogram_cost(histogram, differences, self._weight)
            if told < histogram_cost(plan.histogram, plain, self._weight):
                plan.references, plan.histogram = plan_references, histogram

    def _differences(self, plan: FieldPlan, references: Sequence[Reference], at: Sequence[int]) -> list[int]:
        """Numbers less what the references foretell."""
        return self._relations.differences(plan.node, references, at)

    def _foretell(self, plan: FieldPlan) -> None:
        """The context that saves most, if one does."""
        node = plan.node
        if len(node.counted) < 2 or not _comes_again(node) or mean_bits(plan) < 0.3:
            return
        best = _Foretold(0.0, -1, {})
        for source in range(max(1, node.id - EARLIER_MAX), node.id):
            other = self._learned.nodes[source]
            varies = len(other.counted) > 1 and _comes_again(other)
            if self._learned.effort.used_up:
                break
            if varies and self._together(node, source) and source not in self._relations.ancestors[node.id]:
                found = self._foretold(plan, source)
                if found.saved > best.saved:
                    best = found
        if best.source < 0:
            return
        plan.context, plan.contexts = best.source, best.contexts
        known = self._learned.beside(node, best.source)
        foreseen = [best.contexts.get(b"" if context is None else context) for context in known]
        left = [
            at for at, value in enumerate(node.values) if (there := foreseen[at]) is None or value not in there.values
        ]
        self._tables(plan, left)
        for at, value in enumerate(node.values):
            there = foreseen[at]
            if there is not None:
                total = there.others + sum(there.values.values())
                seen = there.values.get(value)
                plan.bits[at] = plan.bits[at] + log2(total / there.others) if seen is None else log2(total / seen)

    def _together(self, node: Node, source: int) -> bool:
        """Whether they stand in the same messages, by the first ones: fields of other patterns do not."""
        return any([value is not None for value in self._learned.beside(node, source)[:_FIRST_MESSAGES]])

    def _foretold(self, plan: FieldPlan, source: int) -> _Foretold:
        node, known = plan.node, self._learned.beside(plan.node, source)
        self._learned.effort.spend(len(known))
        pairs = Counter(zip(known, node.values, strict=True))
        if len(pairs) == len(node.values):
            return _Foretold(0.0, source, {})  # no value came twice with a context
        groups: defaultdict[bytes, dict[bytes, list[float]]] = defaultdict(dict)
        for context, value, bits in zip(known, node.values, plan.bits, strict=True):
            if context is not None:
                groups[context].setdefault(value, []).append(bits)
        saved = 0.0
        contexts: dict[bytes, Foreseen] = {}
        for context, values in groups.items():
            if not self._admits(context):
                continue
            gain, foreseen = self._context(context, values)
            if foreseen is not None and gain > 0:
                saved += gain
                contexts[context] = foreseen
        return _Foretold(saved, source, contexts)

    def _context(self, known: bytes, values: dict[bytes, list[float]]) -> tuple[float, Foreseen | None]:
        """What a context saves, in bits of all samples less the model's, with the values that it has then."""
        total = 1 + sum(map(len, values.values()))
        price = PACKED_BITS / self._weight
        chosen: dict[bytes, int] = {}
        gain = -price * (len(known) + 3)
        for value, bits in values.items():
            if len(bits) > 1:
                one = sum(bits) - len(bits) * log2(total / len(bits)) - price * (len(value) + ROW_BYTES)
                if one > 0 and self._admits(value):
                    chosen[value] = len(bits)
                    gain += one
        if not chosen:
            return 0.0, None
        others = total - sum(chosen.values())
        return gain - (others - 1) * log2(total / others), Foreseen(chosen, others)

    def _vocabulary(self) -> Vocabulary:
        """The words of all texts that pay."""
        tokens: Counter[bytes] = Counter()
        ends = 0
        for plan in self._plans:
            for text, count in plan.texts.items():
                ends += count
                for token in text_tokens(text):
                    tokens[token] += count
        total = tokens.total() + ends + SPECIALS
        words = sorted([word for word, count in tokens.items() if self._word_pays(word, count, total)])
        counts = [1] * SPECIALS
        counts[0] += ends
        known = set(words)
        for token, count in tokens.items():
            if token not in known:
                blank = token[0] == 32 and len(token) > 1
                counts[1 + 2 * alphabet_of(token[1:] if blank else token) + blank] += count
        return Vocabulary(words, counts + [tokens[word] for word in words])

    def _word_pays(self, word: bytes, count: int, total: int) -> bool:
        saved = count * (_TEXT_BITS + _CHARACTER_BITS * len(word) - log2(total / count))
        return (
            count > 1
            and len(word) <= WORD_BYTES_MAX
            and saved * self._weight > PACKED_BITS * (len(word) + ROW_BYTES)
            and self._admits(word)
        )

    def _run(self, run: RunField, runs: Sequence[bytes]) -> RunField:
        """With tables of positions as far as a model may have them; these may spell what few have sent."""
        if self._admits is not _all:
            return run
        told = with_positions(run, runs, self._weight)
        letters = sum([len(table.steps) for table in told.positions if table is not None])
        if self._letters + letters > LETTERS_MAX:
            return run
        self._letters += letters
        return told

    def _field(self, plan: FieldPlan, recurrence: Recurrence, fields: dict[int, Field]) -> Field:
        node = plan.node
        patterns = [
            Pattern(shape.pieces, [fields[inner.id] for inner in inners], shape.widths)
            for shape, inners in node.patterns
        ]
        number = None
        if plan.histogram is not None and node.format is not None:
            form, places = node.format
            number = NumberField(form, places, plan.histogram, plan.references, recurrence.histogram)
        run = None if node.run is None else self._run(node.run, node.runs)
        field = Field(node.id, [row for row, _ in plan.rows], patterns, number, run, plan.counts)
        field.repeats, field.by_key, field.is_key = recurrence.repeats, recurrence.by_key, recurrence.is_key
        if plan.context >= 0:
            field.context = plan.context
            for known, foreseen in sorted(plan.contexts.items()):
                ordered = sorted(foreseen.values)
                field.contexts[known] = Context(
                    ordered, [foreseen.others, *[foreseen.values[value] for value in ordered]]
                )
        return field
