"""Which pieces come next: the job's schedule, so that data can be fetched ahead.

A wrong guess costs time alone: what comes is always what the worker is told (common/tensors/philox.c,
worker/core/schedule.c).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Callable

import numpy

from kelp import _kelp

Indices = numpy.ndarray[Any, numpy.dtype[numpy.int64]]
Piece = tuple[Indices, int]

_PERMUTATION, _LANE = 2, 7  # enum kelp_philox_use
_ROUNDS = 8
_U32 = 2**32 - 1


def _philox(seed: int, use: int, stream: int, index: int) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = index & _U32, index >> 32, stream, use
    k0, k1 = seed & _U32, seed >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _U32, (first >> 32) ^ c3 ^ k1, first & _U32
        k0, k1 = (k0 + 0x9E3779B9) & _U32, (k1 + 0xBB67AE85) & _U32
    return c0, c1, c2, c3


class Permutation:
    """The order of an epoch's samples."""

    def __init__(self, seed: int, epoch: int, n: int) -> None:
        side = int(numpy.sqrt(n))
        while side * side < n:
            side += 1
        self._n = n
        self._sides = (side, -(-n // side))
        self._keys: list[int] = []
        for pair in range(_ROUNDS // 2):
            words = _philox(seed, _PERMUTATION, epoch, pair)
            self._keys += [words[0] << 32 | words[1], words[2] << 32 | words[3]]

    def at(self, positions: Indices) -> Indices:
        cells = self._cells(positions.astype(numpy.uint64))
        while (outside := cells >= self._n).any():
            cells[outside] = self._cells(cells[outside])
        order: Indices = cells.astype(numpy.int64)
        return order

    def _cells(self, cells: Any) -> Any:
        u64 = numpy.uint64
        halves = [cells // u64(self._sides[1]), cells % u64(self._sides[1])]
        for number, key in enumerate(self._keys):
            changed = number % 2
            side = u64(self._sides[changed])
            h = halves[1 - changed] * u64(0x9E3779B97F4A7C15) + u64(key)
            h = (h ^ h >> u64(30)) * u64(0xBF58476D1CE4E5B9)
            h = (h ^ h >> u64(27)) * u64(0x94D049BB133111EB)
            h ^= h >> u64(31)
            halves[changed] = (halves[changed] + (((h >> u64(32)) * side) >> u64(32))) % side
        return halves[0] * u64(self._sides[1]) + halves[1]


class Schedule:
    """The pieces of each lane of each step of training, and of each evaluation.

    Args:
        setting: gives the value in effect of a key of the job
        samples: how many there are in each part
        block: at most so many samples of an evaluation are one piece
    """

    def __init__(self, setting: Callable[[str], str], samples: dict[str, int], block: int) -> None:
        self._samples = samples
        self._block = block
        self._seed = int(setting("seed"))
        self._batch = int(setting("train.batch_size"))
        self.lanes = int(setting("cluster.lanes"))
        self._accumulate = int(setting("train.accumulate"))
        self._shuffle = setting("data.shuffle") == "true"
        whole, rest = divmod(samples["train"], self._batch)
        self.steps_per_epoch = whole + (1 if rest > 0 and setting("train.drop_last") != "true" else 0)
        self._permutation: tuple[int, Permutation] | None = None

    def pieces(self, part: str, step: int, lane: int) -> Iterator[Piece]:
        """The samples and the seed of each piece of a lane."""
        epoch, number = divmod(step, self.steps_per_epoch) if part == "train" else (0, 0)
        start = number * self._batch
        count = min(self._batch, self._samples["train"] - start) if part == "train" else self._samples[part]
        first = count * lane // self.lanes
        end = count * (lane + 1) // self.lanes
        words = _philox(self._seed, _LANE, lane, step)
        seed = words[0] << 32 | words[1]
        for begin, stop in self._cuts(part, end - first):
            indices: Indices = numpy.arange(start + first + begin, start + first + stop, dtype=numpy.int64)
            if part == "train" and self._shuffle:
                indices = self._order(epoch).at(indices)
            yield indices, seed if begin == 0 else _kelp.hash(struct.pack("=QQ", seed, begin))

    def _cuts(self, part: str, count: int) -> Iterator[tuple[int, int]]:
        if part != "train":
            for begin in range(0, count, self._block):
                yield begin, min(begin + self._block, count)
            return
        for piece in range(self._accumulate):
            begin, stop = count * piece // self._accumulate, count * (piece + 1) // self._accumulate
            if begin < stop:
                yield begin, stop

    def _order(self, epoch: int) -> Permutation:
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = (epoch, Permutation(self._seed, epoch, self._samples["train"]))
        return self._permutation[1]


class Forecast:
    """Guesses what a worker is asked for next: the lanes that it had in the step before, in this step and in the next.

    Args:
        ahead: how many pieces to name at least
    """

    def __init__(self, schedule: Schedule, ahead: int) -> None:
        self._schedule = schedule
        self._ahead = ahead
        self._now: tuple[str, int] | None = None
        self._lanes: list[int] = []  # of this step or evaluation so far
        self._usual: list[int] = []  # of the one before

    def after(self, part: str, step: int, lane: int, indices: Indices) -> list[Piece]:
        """The pieces that probably follow this one, in their order."""
        if self._now != (part, step):
            if self._now is not None and self._now[0] == part:
                self._usual = self._lanes
            self._now, self._lanes = (part, step), []
        if lane not in self._lanes:
            self._lanes.append(lane)
        pieces = list(self._schedule.pieces(part, step, lane))
        for number, (of_piece, _) in enumerate(pieces):
            if numpy.array_equal(of_piece, indices):
                pieces = pieces[number + 1 :]
                break
        for later in self._usual:
            if later not in self._lanes:
                pieces += self._schedule.pieces(part, step, later)
        usual = self._usual or self._lanes
        while part == "train" and len(pieces) < self._ahead:
            step += 1
            for later in usual:
                pieces += self._schedule.pieces(part, step, later)
        return pieces
