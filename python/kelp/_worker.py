"""kelp.Worker: a worker whose gradients come from numpy."""

from __future__ import annotations

import math
import platform
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from kelp import _blas, _describe, _kelp, _process

Floats = NDArray[np.float32]

PARTS = {1: "train", 2: "val", 3: "test"}
PREDICT = 6  # of the split that run.part names
SUMS = {
    "squared": 2,
    "absolute": 3,
    "elements": 4,
    "relative": 5,
    "relative_squared": 6,
    "target": 7,
    "target_squared": 8,
    "correct": 9,
}
LOSS = 0
_ROUNDED = 1e-3
_REASONS = "another processor, numpy or BLAS"  # where answers differ


class Init(NamedTuple):
    """The initial state of a tensor: its shape, and where its values come from."""

    shape: tuple[int, ...]
    kind: int
    a: float = 0.0


def constant(shape: int | Sequence[int], value: float = 0.0) -> Init:
    """A tensor in which every element is ``value``."""
    return Init(_shape(shape), 0, value)


def uniform(shape: int | Sequence[int], a: float) -> Init:
    """Random values in [-a, a), determined by the job's seed and the tensor's place in the model."""
    return Init(_shape(shape), 1, a)


def normal(shape: int | Sequence[int], std: float) -> Init:
    """Normal values with mean 0, determined by the job's seed and the tensor's place in the model."""
    return Init(_shape(shape), 2, std)


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)


def fingerprint(*arrays: NDArray[Any]) -> int:
    """A 64-bit hash of the arrays' types, shapes and contents."""
    words = []
    for array in arrays:
        array = np.ascontiguousarray(array)
        words += [_kelp.hash(repr((array.dtype.str, array.shape)).encode()), _kelp.hash(array.data)]
    return _kelp.hash(np.array(words, dtype=np.uint64).data)


def _floats(memory: _kelp.Memory) -> Floats:
    buffer: Any = memory
    return np.frombuffer(buffer, np.float32)


def _numpy_answer() -> int:
    """A hash of something that numpy computes, to tell its kernels apart."""
    x = (np.arange(1, 96 * 96 + 1, dtype=np.float32) % 97 / 97).reshape(96, 96)
    y = np.exp(x @ x.T / 96) + np.tanh(x).sum(axis=0) / np.sqrt(x + 1).sum(axis=1, keepdims=True)
    return _kelp.hash(np.ascontiguousarray(y, dtype=np.float32).data)


def _numpy_kind(threads: int) -> str:
    blas = _blas.loaded()
    if blas is not None:
        blas.threads = threads
    name = "another BLAS" if blas is None else blas.name
    return f"numpy {np.__version__} {platform.machine()} {name} threads={threads}"[:127]


def own_sums(core: _kelp.Worker) -> set[str]:
    """The names in the job's model.sums."""
    words = core.setting("model.sums").strip("[]").split(",")
    return {name for word in words if (name := word.strip(' "').partition("=")[0])}


def check_sum(name: str, own: set[str]) -> None:
    if name not in SUMS and name not in own:
        raise ValueError(
            f"submit(): there is no sum {name!r}; the sums are {', '.join(sorted(own) + list(SUMS))}, and those "
            "given to Worker(sums=)"
        )


def check_correct(sums: Mapping[str, float], samples: int) -> None:
    """Refuse a mean instead of a count: the accuracy would be wrong, and nobody would notice."""
    count, most = sums.get("correct", 0.0), sums.get("elements", samples)
    # A count computed as mean * samples may not be exactly whole.
    if not -_ROUNDED <= count <= most + _ROUNDED or abs(count - round(count)) > _ROUNDED:
        raise ValueError(
            f"submit(): correct is {count:.6g}; it must be how many of the {most:.0f} are right, a whole "
            "number: (out.argmax(1) == y).sum(), not the mean"
        )


def add_sums(core: _kelp.Worker, sums: Mapping[str, float]) -> None:
    for name, value in sums.items():
        if name in SUMS:
            core.add(SUMS[name], value)
        else:
            core.add_named(name, value)


def _rows(predictions: NDArray[Any] | None, samples: int) -> Floats:
    """Convert to float32 in two dimensions, of which the first is samples."""
    if predictions is None:
        raise ValueError(
            "submit(): kelp predict needs predictions=, a row of numbers for each sample of the batch; there are none"
        )
    if predictions.ndim == 0 or len(predictions) != samples or predictions.size == 0:
        raise ValueError(
            f"submit(): predictions has shape {predictions.shape}; its first dimension must be the batch's {samples} "
            "samples"
        )
    return np.ascontiguousarray(predictions, dtype=np.float32).reshape(samples, -1)


class Batch:
    """One piece of a lane: samples to compute together.

    Attributes:
        training: whether a gradient is needed; otherwise the batch is part of an evaluation
        predicting: whether only predictions are needed (``kelp predict``)
        part: the split that :attr:`indices` belong to: ``"train"``, ``"val"`` or ``"test"``
        indices: the numbers of the samples, uint64
        step: training steps before this one
        epoch: passes through the data before this one
        lane: the lane's number in the step
        samples: number of samples in this batch
        step_samples: number of samples in all batches of the step
        first: whether this is the first batch of its lane, so that the gradient is zero
        seed: 64 bits that alone must determine all random numbers
        lr: the learning rate of the step
        weights: a read-only array for each tensor
        gradient: an array for each tensor; add the gradient to it
    """

    __slots__ = (
        "training", "predicting", "part", "indices", "step", "epoch", "lane", "samples", "step_samples", "first",
        "seed", "lr", "weights", "gradient", "_core", "_own_sums", "_submitted",
    )  # fmt: skip

    training: bool
    predicting: bool
    part: str
    indices: NDArray[np.uint64]
    step: int
    epoch: int
    lane: int
    samples: int
    step_samples: int
    first: bool
    seed: int
    lr: float
    weights: Mapping[str, Floats]
    gradient: Mapping[str, Floats]

    def __init__(self, core: _kelp.Worker, own: set[str]) -> None:
        self._core = core
        self._own_sums = own
        self._submitted = False

    @property
    def wanted(self) -> bool:
        """Whether this batch is still needed. A long computation may ask, and leave the loop if it is not."""
        return self._core.poll()

    def submit(self, loss: float | None = None, *, predictions: NDArray[Any] | None = None, **sums: float) -> None:
        """Submit the batch, whose gradient is now complete.

        Args:
            loss: the sum of the losses of this batch's samples; not needed for predictions
            predictions: the output of ``kelp predict``: a row of numbers for each sample of this batch. It is ignored
                unless :attr:`predicting` is true
            sums: sums from which metrics are computed: ``squared``, ``absolute`` and ``relative`` errors and
                ``elements``, over elements of the target; ``correct``, over samples; and those of the worker's
                ``sums``
        """
        if self._submitted:
            raise RuntimeError(f"step {self.step}: submit() was called twice for one batch; call it once for each")
        for name in sums:
            check_sum(name, self._own_sums)
        check_correct(sums, self.samples)
        if self.predicting:
            rows = _rows(predictions, self.samples)
            self._core.predict(rows, rows.shape[1])
        elif loss is None:
            raise TypeError("submit(): loss is missing; it is the sum over the batch's samples")
        else:
            self._core.add(LOSS, loss)
            add_sums(self._core, sums)
        self._submitted = True
        self._core.submit()


class _Description:
    """Takes the job's place while the script runs only to describe it."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self.arrays: dict[str, Floats] = {}

    def setting(self, key: str) -> str:
        if key not in self._settings:
            raise ValueError(f"setting({key!r}): there is no job yet, only settings=; put the value there")
        return self._settings[key]

    def end(self) -> NoReturn:
        _describe.write(self._settings, self.arrays)
        sys.exit(0)


class Worker:
    """A worker of a job that computes gradients with numpy.

    Iterate over it; the loop ends when the job is over::

        with kelp.Worker(train=len(x), fingerprint=kelp.fingerprint(x, y)) as worker:
            worker.tensor("w", kelp.uniform((8,), 0.1))
            for batch in worker:
                inputs, target = x[batch.indices], y[batch.indices]
                error = inputs @ batch.weights["w"] - target
                if batch.training:
                    batch.gradient["w"] += inputs.T @ (2 * error / batch.step_samples)
                batch.submit(np.square(error, dtype=np.float64).sum())

    The weights of a job have the same bits whichever worker computed which lane, if each gradient depends only on
    ``batch.weights``, the samples at ``batch.indices`` and ``batch.seed``.

    Args:
        train, val, test: number of samples in the training, validation and test split
        fingerprint: the :func:`fingerprint` of the data; workers with another one are refused
        program: a hash of the program, such as a :func:`fingerprint`; workers with another one are refused
        compute: processor and libraries, on which the bits depend too, in at most 127 characters. Workers with
            another text are refused. Default: numpy's version, its BLAS and the number of its threads
        answer: a hash of something computed with these, for the same purpose. Default: computed with numpy
        block: largest number of samples in a batch of an evaluation
        sums: names of your own sums for :meth:`Batch.submit`. Their means over the samples of an evaluation are
            metrics, such as ``val/NAME``. ``NAME=min``: a smaller mean is better
        settings: keys of the job that ``kelp run`` makes from the script, such as ``{"train.epochs": 3}``
    """

    _core: _kelp.Worker

    def __init__(
        self,
        *,
        train: int,
        val: int = 0,
        test: int = 0,
        fingerprint: int,
        program: int = 0,
        compute: str | None = None,
        answer: int | None = None,
        block: int = 256,
        sums: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._names: list[str] = []
        self._shapes: list[tuple[int, ...]] = []
        self._description: _Description | None = None
        self._loop = _process.Loop()
        if _describe.wanted():
            keys = {key: _describe.text_of(value) for key, value in (settings or {}).items()}
            self._description = _Description({**keys, "model.sums": _describe.text_of(sums)} if sums else keys)
            return
        self._core = _process.open_worker()
        self._interrupts = _process.Interrupts(self._core)
        self._finish = weakref.finalize(self, _close, self._core, self._interrupts, self._loop)
        self._weights: dict[int, Mapping[str, Floats]] = {}
        self._gradients: dict[int, tuple[Floats, Mapping[str, Floats]]] = {}
        self._own_sums = own_sums(self._core)
        self._joined = False
        self._batch: Batch | None = None
        kind = _numpy_kind(int(self.setting("cluster.lane_threads"))) if compute is None else compute
        self._core.plan_data(train, val, test, fingerprint)
        self._core.plan_program(program)
        self._core.plan_compute(kind, _numpy_answer() if answer is None else answer)
        self._core.plan_reasons(_REASONS)
        self._core.plan_block(block)

    def setting(self, key: str) -> str:
        """The value in effect of a key of the job file, such as ``"train.batch_size"``, as text."""
        if self._description is not None:
            return self._description.setting(key)
        return self._core.setting(key)

    @property
    def over(self) -> bool:
        """Whether the job is over. A loop also ends when the worker is stopped: by SIGTERM, or when it is drained."""
        return self._description is None and self._core.over()

    def tensor(self, name: str, init: Init | Floats, momentum: float = 0.0, held: bool = False) -> None:
        """Add a tensor to the model.

        Args:
            name: at most 127 characters, unique in the model
            init: :func:`constant`, :func:`uniform` or :func:`normal`; or an array with the tensor's shape, whose
                values then come from the tensor of that name in the job's ``model.init``
            held: whether the tensor keeps its initial values and has no gradient
            momentum: 0 for a parameter. Above 0 for a running statistic: its "gradient" is the batch's value
                times ``samples / step_samples``, and the update is ``(1 - momentum) * w + momentum * g``
        """
        if self._description is not None:
            if not isinstance(init, Init):
                self._description.arrays[name] = init
            return
        if not isinstance(init, Init):
            init = Init(np.shape(init), 3)
            if not self.setting("model.init"):
                raise ValueError(
                    f"tensor {name!r} begins with given values, but the job has no model.init: it must name a "
                    "safetensors file with these values"
                )
        self._core.plan_tensor(name, init.shape, init.kind, init.a, momentum, held)
        self._names.append(name)
        self._shapes.append(init.shape)

    def _views(self, memory: _kelp.Memory) -> Mapping[str, Floats]:
        whole = _floats(memory)
        offsets = map(self._core.offset, range(len(self._names)))
        return {
            name: whole[offset : offset + math.prod(shape)].reshape(shape)
            for name, shape, offset in zip(self._names, self._shapes, offsets)
        }

    def __iter__(self) -> Iterator[Batch]:
        if self._description is not None:
            self._description.end()
        return self

    def __next__(self) -> Batch:
        if self._batch is not None and not self._batch._submitted:
            raise RuntimeError(f"step {self._batch.step}: a batch was not submitted; call batch.submit() once for each")
        if not self._joined:
            self._joined = self._core.join()
        self._batch = None
        piece = self._core.next() if self._joined else None
        if piece is None:
            self._loop.step = None
            raise StopIteration
        self._batch = batch = Batch(self._core, self._own_sums)
        (kind, batch.step, batch.epoch, batch.lane, _, batch.step_samples, weights, gradient,
         batch.seed, batch.lr, done, batch.samples) = piece  # fmt: skip
        self._loop.step = batch.step
        batch.training = kind == 1
        batch.predicting = kind == PREDICT
        batch.part = PARTS.get(kind) or self.setting("run.part")
        batch.first = done == 0
        batch.indices = np.frombuffer(self._core.indices(), np.uint64)
        if weights not in self._weights:
            self._weights[weights] = self._views(self._core.weights(weights, False))
        batch.weights = self._weights[weights]
        batch.gradient = self._gradient(gradient, batch.first) if batch.training else {}
        return batch

    def _gradient(self, number: int, first: bool) -> Mapping[str, Floats]:
        if number not in self._gradients:
            memory = self._core.gradient()
            self._gradients[number] = (_floats(memory), self._views(memory))
        whole, views = self._gradients[number]
        if first:
            whole.fill(0)
        return views

    def close(self) -> None:
        """Leave the job. Other workers compute a batch that was not submitted.

        Arrays of weights and gradients that are still referenced stay valid.
        """
        if self._description is not None:
            return
        self._batch = None
        self._weights.clear()
        self._gradients.clear()
        self._finish()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._loop.check(error)
        finally:
            self.close()


def _close(core: _kelp.Worker, interrupts: _process.Interrupts, loop: _process.Loop) -> None:
    loop.close()
    interrupts.close()
    core.close()
