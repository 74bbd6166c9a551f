"""What a worker computes before it joins: small batches that show whether the script computes correctly.

The same batch is computed three times. The three must agree, and a hash of their gradient and sums is what workers
compare. Then half of it is computed, and that half with each sample twice: a mean over the batch stays, a sum doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import numpy
import torch

from kelp import _kelp

from ._module import BatchNormWatch, Model

Numbers = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

_TIMES = 3
_SEED = 0x6B656C70
# Samples of a batch of which half is computed once more. A loss that tells each sample from the others of its
# batch begins at log 2 with two of them, and doubles to log 4.
_DOUBLED_LEAST = 6
_NEAR = 0.01
_MEAN_ERRORS = ("squared", "absolute", "relative", "relative_squared")  # sums that may wrongly be submitted as means


class Piece(NamedTuple):
    """Samples to compute: their numbers, the memory for the gradient, and the seed of random numbers."""

    numbers: Numbers
    gradient: list[torch.Tensor]
    seed: int


class Rehearsals:
    """Batches of the smallest size that a step of training has.

    For each piece that :meth:`next` gives, :meth:`end_doubled` is called if :attr:`doubling`, else :meth:`end_same`.

    Attributes:
        values: the values of the module's tensors in all of these batches
        doubling: whether the last piece serves to tell sums from means; it needs no gradient
    """

    def __init__(self, model: Model, lengths: tuple[int, int, int], setting: Callable[[str], str]) -> None:
        self.values = model.rehearsal_values()
        self.doubling = False
        self._model = model
        self._same: list[tuple[list[torch.Tensor], list[float]]] = []  # gradient, loss and sums
        self._doubled: list[Mapping[str, float]] = []  # of half a batch, and of that half twice
        self._over = False
        batch_size, lanes, accumulate = (
            int(setting(key)) for key in ("train.batch_size", "cluster.lanes", "train.accumulate")
        )
        train, *others = lengths
        last = 0 if setting("train.drop_last") == "true" else train % batch_size
        full = min(batch_size, train)
        count = max(1, max(1, (last or full) // lanes) // accumulate)
        varies = any(others) or last > 0 or full % (lanes * accumulate) > 0  # the script gets several sizes anyway
        self._may_double = setting("run.mode") == "train" and count >= _DOUBLED_LEAST and varies
        self._numbers: Numbers = numpy.linspace(0, train - 1, count).astype(numpy.int64)
        self._watch = BatchNormWatch(
            model.module,
            f"a step has a piece of {count} samples (train.batch_size {batch_size}, cluster.lanes {lanes}, "
            f"train.accumulate {accumulate}, {train} samples): take fewer lanes, or train.drop_last: true",
        )

    def next(self) -> Optional[Piece]:
        """What to compute next; None: the script computes as it should."""
        if self._over:
            return None
        if len(self._same) < _TIMES:
            gradient = [torch.zeros_like(value) for value in self.values]
            self._same.append((gradient, []))
            return Piece(self._numbers.copy(), gradient, _SEED)
        self.doubling = self._wants_doubled()
        if not self.doubling:
            self._model.drop_again()
            self._over = True
            return None
        pair, half = len(self._doubled) // 2, len(self._numbers) // 2
        numbers = self._numbers[-half:] if pair else self._numbers[:half]
        if len(self._doubled) % 2:
            numbers = numpy.concatenate([numbers, numbers])
        self._model.drop_nothing()
        return Piece(numbers.copy(), self._same[-1][0], _SEED + pair)

    def finish(self) -> int:
        """A 64-bit hash of what the script computed the first time."""
        gradient, numbers = self._same[0]
        parts = [_kelp.hash(tensor.detach().contiguous().numpy().data) for tensor in gradient]
        parts.append(_kelp.hash(repr(numbers).encode()))
        self._watch.remove()
        self.values = []
        self._same = []
        return _kelp.hash(numpy.array(parts, dtype=numpy.uint64).data)

    # ---- the same each time ----

    def end_same(self, loss: float, sums: Mapping[str, float]) -> None:
        """The gradient is complete: check that it, the loss and the sums are the same as the first time."""
        gradient, numbers = self._same[-1]
        numbers += [loss, *(sums[name] for name in sorted(sums))]
        self._model.find_statistics(gradient)
        first, first_numbers = self._same[0]
        which = f"the {('1st', '2nd', '3rd')[len(self._same) - 1]} time"
        why = (
            "the script must compute a batch from its samples, the weights and seeded random numbers alone; "
            "torch.jit, caches, counters and generators of your own depend on what was computed before"
        )
        for name, before, now in zip(self._model.tensor_names(), first, gradient):
            if not torch.equal(before.view(torch.int32), now.view(torch.int32)):
                raise ValueError(f"{name}: the same batch gave another gradient {which}; {why}")
        if repr(first_numbers) != repr(numbers):
            raise ValueError(f"the same batch gave another loss or sum {which}; {why}")

    # ---- sums and means ----

    def _wants_doubled(self) -> bool:
        """Whether to compute another pair: half a batch, then that half twice. The second pair confirms a suspicion."""
        if len(self._doubled) % 2 == 1:
            return True
        if not self._doubled:
            return self._may_double
        return len(self._doubled) == 2 and bool(self._suspected())

    def _suspected(self) -> set[str]:
        """The loss if every pair shows that it is a sum, and sums that every pair shows to be means."""
        found = {"loss", *_MEAN_ERRORS}
        for once, twice in zip(self._doubled[::2], self._doubled[1::2]):
            found = {
                name
                for name in found
                if once.get(name)
                and abs(twice.get(name, 0.0) / once[name] - (2 if name == "loss" else 1)) <= _NEAR
            }
        return found

    def end_doubled(self, measures: Mapping[str, float]) -> None:
        """Keep the loss and the sums of such a piece."""
        self._doubled.append(measures)
        if len(self._doubled) < 4:
            return
        for name in sorted(self._suspected()):
            if name == "loss":
                raise ValueError(
                    "submit(): the loss is a sum over the batch: the same samples, each two times, give twice as much; "
                    'submit the mean: reduction="mean", or loss / batch.samples'
                )
            raise ValueError(
                f"submit(): {name} is a mean over the batch: the same samples, each two times, give as much; submit "
                "the sum over all elements, and how many these are as elements"
            )
