"""kelp.torch.Worker: a worker whose gradients come from a PyTorch module and the user's own loop."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Optional, Union

import numpy
import torch
from torch import nn
from torch.utils.data import Dataset

from kelp import _describe, _kelp, _process
from kelp._worker import LOSS, PARTS, PREDICT, add_sums, check_correct, check_sum, own_sums

from ._bits import compute_kind, prepare, seed_lane
from ._data import Loader
from ._module import Model
from ._optim import job_keys
from ._rehearsal import Numbers, Rehearsals

Number = Union[float, torch.Tensor]

_torch: Any = torch  # some of its names and functions have no types
_REASONS = "another loss, module, data transform or sum given to submit()"  # where answers differ
_AHEAD = 2  # pieces for each data process
_FROM_FILE = 3
_INT64 = numpy.int64


class Batch:
    """One piece of a lane: samples to compute together.

    Attributes:
        data: the samples, as ``collate_fn`` returns them
        training: whether a gradient is needed; otherwise the batch is part of an evaluation
        predicting: whether only predictions are needed (``kelp predict``)
        part: ``"train"``, ``"val"`` or ``"test"``
        step: training steps before this one
        epoch: passes through the data before this one
        samples: number of samples in this batch
        step_samples: number of samples in all batches of the step
        lr: the learning rate of the step; 0 in an evaluation
        rehearsal: whether the batch only checks the script. Such batches come before the first step
    """

    __slots__ = (
        "data", "training", "predicting", "part", "step", "epoch", "samples", "step_samples", "lr", "rehearsal",
        "_worker", "_numbers", "_submitted",
    )  # fmt: skip

    data: Any
    training: bool
    predicting: bool
    part: str
    step: int
    epoch: int
    samples: int
    step_samples: int
    lr: float
    rehearsal: bool

    def __init__(self, worker: Worker, numbers: Numbers) -> None:
        self._worker = worker
        self._numbers = numbers
        self._submitted = False

    @property
    def indices(self) -> torch.Tensor:
        """The numbers of the samples in their dataset, int64."""
        return torch.from_numpy(self._numbers)

    def submit(
        self, loss: Optional[torch.Tensor] = None, *, predictions: Optional[torch.Tensor] = None, **sums: Number
    ) -> None:
        """Run the backward pass if the batch is for training, and submit the gradient and the metrics.

        Args:
            loss: the mean loss over this batch's samples; not needed for predictions
            predictions: the output of ``kelp predict``: a row of numbers for each sample of this batch. It is ignored
                unless :attr:`predicting` is true
            sums: sums over the samples, from which metrics are computed: ``correct``, the number of samples that were
                classified right; ``squared`` and ``absolute`` errors, with ``elements``, the number of elements that
                they were summed over; and those of the worker's ``sums``
        """
        if self._submitted:
            raise RuntimeError(f"step {self.step}: submit() was called twice for one batch; call it once for each")
        self._worker._submit(self, loss, predictions, sums)
        self._submitted = True


def _value(name: str, value: Number) -> float:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"submit(): {name} has shape {tuple(value.shape)}; it must be one number, a sum over the samples"
            )
        return float(value.item())
    return float(value)


def _check_loss(loss: object, training: bool) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"submit(): loss is a {type(loss).__name__}; it must be a tensor, the mean over the batch")
    if loss.numel() != 1:
        raise ValueError(f"submit(): loss has shape {tuple(loss.shape)}; it must be one number: loss.mean()")
    if training and not loss.requires_grad:
        raise ValueError("submit(): loss does not depend on a parameter; remove detach(), item() and no_grad()")
    return loss


def _rows(predictions: object, samples: int) -> torch.Tensor:
    """Convert to float32 in two dimensions, of which the first is samples."""
    if predictions is None:
        raise ValueError(
            "submit(): kelp predict needs predictions=, a row of numbers for each sample of the batch; there are none"
        )
    if not isinstance(predictions, torch.Tensor):
        raise TypeError(f"submit(): predictions is a {type(predictions).__name__}; it must be a tensor")
    if predictions.dim() == 0 or predictions.shape[0] != samples or predictions.numel() == 0:
        raise ValueError(
            f"submit(): predictions has shape {tuple(predictions.shape)}; its first dimension must be the batch's "
            f"{samples} samples"
        )
    return predictions.detach().to(torch.float32).reshape(samples, -1)


def _refuse(what: str, instead: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{what}: {instead}")

    return refuse


class _Guard:
    """Refuses calls that must not be made in a worker's loop, until it is released."""

    def __init__(self, optimizer: Optional[torch.optim.Optimizer], scheduler: Any) -> None:
        self._undo: list[Callable[[], None]] = []
        if optimizer is not None:
            self._put(optimizer, "step", "optimizer.step()", "shards apply the optimizer; remove this call")
            self._put(optimizer, "zero_grad", "optimizer.zero_grad()", "each gradient begins at zero; remove this call")
        if scheduler is not None:
            self._put(scheduler, "step", "scheduler.step()", "the job has the schedule; remove this call")
        scalers = [_torch.cuda.amp.GradScaler, getattr(_torch.amp, "GradScaler", None)]
        for scaler in scalers:
            if scaler is not None and "scale" in vars(scaler):
                self._put(
                    scaler, "scale", "GradScaler",
                    "gradients of several workers are added up, and would have different scales; remove it, and use "
                    "torch.autocast with torch.bfloat16, which needs no scaling",
                )  # fmt: skip

    def _put(self, owner: Any, name: str, what: str, instead: str) -> None:
        before = vars(owner).get(name)
        setattr(owner, name, _refuse(what, instead))

        def undo() -> None:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def release(self) -> None:
        while self._undo:
            self._undo.pop()()


class Worker:
    r"""A worker of a job that trains a module with a loop of your own.

    Iterate over it for batches of training and evaluation; the loop ends when the job is over::

        with kelp.torch.Worker(model, train, val=val,
                               optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
                               epochs=3, batch_size=64, lanes=2) as worker:
            for batch in worker:
                x, y = batch.data
                out = model(x)
                batch.submit(F.cross_entropy(out, y), correct=(out.argmax(1) == y).sum())

    Start the script with ``kelp run train.py``. The script first runs once to describe the job; that run ends where the
    Worker is created. Then each worker runs the script. Weights, the order of samples, the optimizer and the schedule
    belong to the job, so the result has the same bits for any number of workers, whichever of them fail.

    Before the first step a worker checks the script. It computes a small batch three times, to see that the result is
    the same each time. Then it computes half of that batch, once as it is and once with each sample twice, to see that
    the loss is a mean.

    Args:
        model: its float32 parameters and buffers are the tensors of the job. Parameters that do not require a
            gradient do not change. After the worker is closed, the module has the newest weights
        train, val, test: map-style datasets for training, validation and test
        optimizer: an optimizer over ``model.parameters()``; its settings are read, and it never makes a step
        scheduler: a scheduler of that optimizer; its settings are read, and it never makes a step
        scheduler_unit: what the schedule counts: ``"epoch"`` or ``"step"``
        epochs: passes through the data
        batch_size: samples of a step, over all workers
        lanes: shares that a step is cut into; at most this many workers can compute at once. The result depends on it
        accumulate: pieces that a lane is cut into, to save memory
        seed: the seed for the order of samples and for random numbers
        sums: names of your own sums for :meth:`Batch.submit`. Their means over the samples of an evaluation are
            metrics, such as ``val/NAME``. ``NAME=min``: a smaller mean is better
        monitor: the metric that ReduceLROnPlateau, early stopping and the best checkpoint follow
        settings: further keys of the job, such as ``{"train.clip_norm": 1.0, "checkpoint.interval": "30s"}``
        collate_fn: makes ``batch.data`` from a list of samples, as in ``torch.utils.data.DataLoader``
        workers: number of processes that fetch samples; 0: this process does
        block: largest number of samples in a batch of an evaluation

    Arguments that are ``None`` leave the job's default.

    Raises:
        ValueError: something is not supported; one line says why, and what would be right
    """

    def __init__(
        self,
        model: nn.Module,
        train: Dataset[Any],
        val: Optional[Dataset[Any]] = None,
        test: Optional[Dataset[Any]] = None,
        *,
        optimizer: Optional[torch.optim.Optimizer] = None,
        scheduler: Optional[object] = None,
        scheduler_unit: str = "epoch",
        epochs: Optional[int] = None,
        batch_size: Optional[int] = None,
        lanes: Optional[int] = None,
        accumulate: Optional[int] = None,
        seed: Optional[int] = None,
        sums: Sequence[str] = (),
        monitor: Optional[str] = None,
        settings: Optional[Mapping[str, object]] = None,
        collate_fn: Optional[Callable[[list[Any]], Any]] = None,
        workers: int = 0,
        block: int = 256,
    ) -> None:
        if not _describe.wanted():
            _process.check_place()
        self._model = Model(model)
        keys = {}
        if optimizer is not None:
            keys = job_keys(
                optimizer,
                scheduler,
                module=model,
                unit=scheduler_unit,
                units=epochs if scheduler_unit == "epoch" else None,
                monitor=monitor or "val/loss",
            )
        for key, value in (
            ("train.epochs", epochs),
            ("train.batch_size", batch_size),
            ("cluster.lanes", lanes),
            ("train.accumulate", accumulate),
            ("seed", seed),
            ("train.monitor", monitor),
            ("model.sums", sums or None),
            *(settings or {}).items(),
        ):
            if value is not None:
                keys[key] = _describe.text_of(value)
        if _describe.wanted():
            Loader(train, val, test, collate_fn).close()  # mistakes end the command before a cluster starts
            _describe.write(keys, dict(zip(self._model.tensor_names(), map(_array, self._model.tensors()))))
            sys.exit(0)
        self._loader = Loader(train, val, test, collate_fn, workers)
        try:
            self._core = _process.open_worker()
        except BaseException:
            self._loader.close()
            raise
        self._interrupts = _process.Interrupts(self._core)
        self._guard = _Guard(optimizer, scheduler)
        self._loop = _process.Loop()
        self._finish = weakref.finalize(
            self, _close, self._core, self._interrupts, self._loop, self._loader, self._guard, self._model
        )
        self._check_job()
        self._own_sums = own_sums(self._core)
        self._threads = int(self.setting("cluster.lane_threads"))
        prepare(self._threads)
        self._core.plan_data(*self._loader.lengths(), self._loader.fingerprint())
        self._core.plan_block(block)
        self._ahead = _AHEAD * workers
        self._weights: dict[int, list[torch.Tensor]] = {}
        self._gradients: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}
        self._rehearsals: Optional[Rehearsals] = None
        self._scales: dict[float, torch.Tensor] = {}
        self._training: Optional[bool] = None
        self._joined: Optional[bool] = None  # False: stopped instead
        self._batch: Optional[Batch] = None

    def _check_job(self) -> None:
        if not self.setting("model.init"):
            raise ValueError(
                "the job has no model.init with the initial weights; kelp run makes one from the module's weights"
            )

    def setting(self, key: str) -> str:
        """The value in effect of a key of the job, such as ``"train.batch_size"``, as text."""
        return self._core.setting(key)

    @property
    def over(self) -> bool:
        """Whether the job is over. A loop also ends when the worker is stopped: by SIGTERM, or when it is drained."""
        return self._core.over()

    # ---- the loop ----

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._batch is not None and not self._batch._submitted:
            raise RuntimeError(
                f"step {self._batch.step}: a batch was not submitted; call batch.submit(loss) once for each"
            )
        self._batch = None
        if self._joined is None:
            self._batch = self._rehearse()
            if self._batch is not None:
                return self._batch
            assert self._rehearsals is not None
            self._join(self._rehearsals.finish())
        piece = self._core.next() if self._joined else None
        if piece is None:
            self._loop.step = None
            torch.set_grad_enabled(True)
            raise StopIteration
        (kind, step, epoch, _, _, step_samples, weights, gradient, seed, lr, done, samples) = piece
        self._loop.step = step
        batch = Batch(self, numpy.frombuffer(self._core.indices(), _INT64))
        batch.rehearsal = False
        batch.training = kind == 1
        batch.predicting = kind == PREDICT
        batch.part = self._part(kind)
        batch.step, batch.epoch, batch.step_samples, batch.samples, batch.lr = step, epoch, step_samples, samples, lr
        if weights not in self._weights:
            self._weights[weights] = self._model.views(self._core, self._core.weights(weights, True))
        views = self._gradient(gradient, done == 0) if batch.training else None
        self._begin(batch, self._weights[weights], views, seed)
        if self._ahead > 0:
            self._expect()
        self._batch = batch
        return batch

    def _part(self, kind: int) -> str:
        return PARTS.get(kind) or self.setting("run.part")

    def _expect(self) -> None:
        """Let data processes fetch the pieces that probably come next."""
        pieces: dict[str, list[tuple[Numbers, int]]] = {}
        for kind, indices, seed in self._core.ahead(self._ahead):
            pieces.setdefault(self._part(kind), []).append((numpy.frombuffer(indices, _INT64), seed))
        for part in pieces:
            self._loader.expect(part, pieces[part])

    def _begin(
        self, batch: Batch, weights: list[torch.Tensor], gradient: Optional[list[torch.Tensor]], seed: int
    ) -> None:
        start = time.monotonic_ns()
        batch.data = self._loader.fetch(batch.part, batch._numbers, seed)
        if not batch.rehearsal:
            self._core.spent_reading((time.monotonic_ns() - start) // 1000)
        self._model.bind(weights, gradient, batch.rehearsal)
        if batch.training != self._training:
            self._model.set_training(batch.training)
            self._training = batch.training
        if torch.is_grad_enabled() != batch.training:
            torch.set_grad_enabled(batch.training)
        seed_lane(seed)

    def _gradient(self, number: int, first: bool) -> list[torch.Tensor]:
        if number not in self._gradients:
            memory = self._core.gradient()
            whole = torch.frombuffer(memory, dtype=torch.float32)
            self._gradients[number] = (whole, self._model.views(self._core, memory))
        whole, views = self._gradients[number]
        if first:
            whole.zero_()
        return views

    def _submit(
        self,
        batch: Batch,
        loss: Optional[torch.Tensor],
        predictions: Optional[torch.Tensor],
        sums: Mapping[str, Number],
    ) -> None:
        if batch is not self._batch:
            raise RuntimeError("submit(): this batch is not the newest one")
        if batch.predicting:
            rows = _rows(predictions, batch.samples)
            self._model.check_weights()
            self._core.predict(_array(rows), rows.shape[1])
            self._core.submit()
            return
        loss = _check_loss(loss, batch.training)
        measures = {name: _value(name, value) for name, value in sums.items()}
        for name in sums:
            check_sum(name, self._own_sums)
        if "correct" in measures and "elements" not in measures:
            measures["elements"] = float(batch.samples)
        check_correct(measures, batch.samples)
        rehearsals = self._rehearsals if batch.rehearsal else None
        if batch.training:
            if rehearsals is not None:
                self._model.check_untouched()
                if rehearsals.doubling:
                    rehearsals.end_doubled({"loss": loss.item(), **measures})
                    return
            share = batch.samples / batch.step_samples
            scale = self._scales.get(share)
            if scale is None:
                scale = self._scales.setdefault(share, torch.tensor(share))
            _torch.autograd.backward(loss.float(), scale if loss.dim() == 0 else scale.reshape(loss.shape))
            self._model.check_step()
            if self._model.buffers and not batch.rehearsal:
                with torch.no_grad():
                    self._model.add_statistics(share)
        else:
            self._model.check_weights()
        total = loss.item() * batch.samples
        if rehearsals is not None:
            rehearsals.end_same(total, measures)
            return
        self._core.add(LOSS, total)
        add_sums(self._core, measures)
        self._core.submit()

    # ---- before the first step ----

    def _rehearse(self) -> Optional[Batch]:
        """The next batch before the job begins, or None."""
        if self._rehearsals is None:
            self._rehearsals = Rehearsals(self._model, self._loader.lengths(), self.setting)
        piece = self._rehearsals.next()
        if piece is None:
            return None
        batch = Batch(self, piece.numbers)
        batch.rehearsal = True
        batch.training = True
        batch.predicting = False
        batch.part = "train"
        batch.step = batch.epoch = 0
        self._loop.step = 0
        batch.lr = 0.0
        batch.samples = batch.step_samples = len(piece.numbers)
        self._begin(batch, self._rehearsals.values, piece.gradient, piece.seed)
        return batch

    def _join(self, answer: int) -> None:
        self._model.plan(self._core, _FROM_FILE)
        self._core.plan_compute(compute_kind(), answer)
        self._core.plan_reasons(_REASONS)
        self._joined = self._core.join()

    # ---- the end ----

    def close(self) -> None:
        """Leave the job. A batch that was not submitted is computed by other workers.

        The module keeps the weights of the last batch, in memory of its own.
        """
        self._batch = None
        self._model.release()
        self._weights.clear()
        self._gradients.clear()
        self._finish()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self._loop.check(error)
        finally:
            self.close()


def _array(tensor: torch.Tensor) -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
    array: numpy.ndarray[Any, numpy.dtype[numpy.float32]] = tensor.detach().contiguous().numpy()
    return array


def _close(
    core: _kelp.Worker, interrupts: _process.Interrupts, loop: _process.Loop, loader: Loader, guard: _Guard,
    model: Model,
) -> None:  # fmt: skip
    loop.close()
    guard.release()
    loader.close()
    model.release()
    interrupts.close()
    core.close()
    torch.set_grad_enabled(True)


def train(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    train: Dataset[Any],
    val: Optional[Dataset[Any]] = None,
    test: Optional[Dataset[Any]] = None,
    **arguments: Any,
) -> nn.Module:
    """Train a module on pairs of input and target: the loop of :class:`Worker` with this loss.

    Args:
        loss_fn: takes ``model(input)`` and ``target``, and gives the mean over the batch
        arguments: those of :class:`Worker`

    Returns:
        the module, with the weights of the last batch
    """
    with Worker(model, train, val, test, **arguments) as worker:
        for batch in worker:
            inputs, target = batch.data
            output = model(inputs)
            sums: dict[str, Number] = {}
            if not target.is_floating_point() and output.dim() == 2:
                sums["correct"] = (output.argmax(1) == target).sum()
            elif target.is_floating_point() and output.shape == target.shape:
                error = (output.detach() - target).double()
                sums = dict(squared=error.square().sum(), absolute=error.abs().sum(), elements=error.numel())
            loss = None if batch.predicting else loss_fn(output, target)
            batch.submit(loss, predictions=output, **sums)
    return model
