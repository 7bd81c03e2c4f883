"""The content of a dictionary of fields: a model learned from samples, and what is beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf
from typing import Final
from zlib import compress

from lexicast.cluster.errors import DictionaryError

from ..deflate import Deflate
from .building import Building
from .codec import SHARE_ONE, frame_of, join_fields_content
from .description import model_texts
from .model import MESSAGE_BYTES_MAX, FieldsModel, FieldState
from .recurrence import Comings
from .relations import Relations
from .serialised import MODEL_BYTES_MAX, dump_model
from .structure import MessageStructure

RICH: Final = 1.5
LEAN: Final = 0.25
"""How many messages a sample stands for when it is decided what pays in a model."""
_SMALLER: Final = (1.0, 0.5, 0.25, 0.02)
PACKED_BYTES_MAX: Final = 6_400
"""What dictionaries of bytes take: a model that takes more has mostly learned texts by heart."""

LEARNED_BYTES_MAX: Final = 384 * 1024
"""Of samples. What fields have to do with each other shows in the newest hundred messages of 4 KiB, too."""

_HEAD_BYTES: Final = 4
_JUDGES: Final = 60
_SHARE_WITHOUT: Final = 128
"""Where the dictionary beside won in no sample: it is tried for messages of which fields leave half."""


def _newest(at: Sequence[int], samples: Sequence[bytes]) -> list[int]:
    """The last of these samples, LEARNED_BYTES_MAX of them at the most."""
    kept: list[int] = []
    room = LEARNED_BYTES_MAX
    for index in reversed(at):
        room -= len(samples[index])
        if room < 0:
            break
        kept.append(index)
    return kept[::-1]


class FieldsTraining:
    """Samples, and what was learned from them once for all contents."""

    def __init__(
        self, samples: Sequence[bytes], topics: Sequence[bytes] = (), admits: Callable[[bytes], bool] | None = None
    ) -> None:
        """`topics`: of each sample, or none. `admits`: whether a text may be in a model; None: all may."""
        self._admits = admits
        kept = _newest([at for at, sample in enumerate(samples) if 0 < len(sample) <= MESSAGE_BYTES_MAX], samples)
        self._samples = [samples[at] for at in kept]
        self._topics = [topics[at] for at in kept] if len(topics) == len(samples) else []
        self._models: dict[float, tuple[FieldsModel, bytes]] = {}
        self._too_rich = inf

    @cached_property
    def _learned(self) -> MessageStructure:
        return MessageStructure(self._samples, self._topics)

    @cached_property
    def _relations(self) -> Relations:
        return Relations(self._learned)

    @cached_property
    def _comings(self) -> Comings:
        return Comings(self._learned)

    def content(self, size: int, preset: bytes, lean: bool = False) -> bytes:
        """The model, and of `preset` the last bytes that there is room for in `size` bytes.

        A model that is too large, or packed larger than PACKED_BYTES_MAX, is made again, of what pays in fewer
        messages; the smallest one may be larger still.
        Raises DictionaryError when it is larger than MODEL_BYTES_MAX.
        """
        for smaller in _SMALLER:
            weight = (LEAN if lean else RICH) * smaller
            if (weight >= self._too_rich or self._learned.effort.used_up) and smaller != _SMALLER[-1]:
                continue
            model, dumped = self._model(weight)
            room = size - len(dumped) - _HEAD_BYTES
            if len(compress(dumped)) > PACKED_BYTES_MAX:
                self._too_rich = min(self._too_rich, weight)
            elif room >= 0:
                break
        if len(dumped) + _HEAD_BYTES > MODEL_BYTES_MAX:
            raise DictionaryError(f"a field model of {len(dumped)} bytes: the messages have too many fields")
        rest = preset[-room:] if room > 0 else b""
        return join_fields_content(self._share(model, rest), rest, dumped)

    def _model(self, weight: float) -> tuple[FieldsModel, bytes]:
        made = self._models.get(weight)
        if made is None:
            model = Building(self._learned, self._relations, self._comings, weight, self._admits).model()
            if self._admits is not None and not all(map(self._admits, model_texts(model))):
                raise DictionaryError("the messages have a pattern that may not be told")
            made = self._models[weight] = (model, dump_model(model))
        return made

    def _share(self, model: FieldsModel, preset: bytes) -> int:
        """From which part of a message on, as which fields leave it, the dictionary is worth a trial."""
        deflate = Deflate("a trial", preset)
        won = []
        for sample in self._samples[:: max(1, len(self._samples) // _JUDGES)]:
            fields = len(frame_of(model.steps(sample, FieldState(model, False))))
            if 1 + len(deflate.compress(sample)) < fields:
                won.append(fields * SHARE_ONE // len(sample))
        won.sort()
        return min(SHARE_ONE - 1, won[len(won) // 8]) if won else _SHARE_WITHOUT
