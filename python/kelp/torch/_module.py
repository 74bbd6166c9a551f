"""A module as tensors of a job: which tensors it has, what is refused, and their views in a worker's memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import nn

from kelp import _kelp

_torch: Any = torch  # some of its names have no types
_grad, _version = operator.attrgetter("grad"), operator.attrgetter("_version")
_batch_norm = nn.modules.batchnorm._BatchNorm
_dropout = nn.modules.dropout._DropoutNd


class Buffer(NamedTuple):
    """A buffer of floating-point numbers, and its places in the module: several if it is shared."""

    name: str
    places: list[tuple[nn.Module, str]]
    value: torch.Tensor

    def now(self) -> Optional[torch.Tensor]:
        owner, key = self.places[0]
        return owner._buffers[key]

    def put(self, value: torch.Tensor) -> None:
        for owner, key in self.places:
            owner._buffers[key] = value


def _bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.detach().contiguous().view(torch.int32), b.detach().contiguous().view(torch.int32))


def _check_tensor(what: str, tensor: torch.Tensor) -> None:
    if isinstance(tensor, _torch.nn.parameter.UninitializedTensorMixin):
        raise ValueError(f"{what} has no shape yet: run the module once before it is given")
    if tensor.dtype != torch.float32:
        raise ValueError(
            f"{what} is {tensor.dtype}; Kelp adds and updates in torch.float32: leave the module in float32, "
            "and compute in less under torch.autocast"
        )
    if tensor.layout != torch.strided:
        raise ValueError(f"{what} is {tensor.layout}; Kelp takes dense tensors")
    if tensor.device.type != "cpu":
        raise ValueError(f"{what} is on {tensor.device}; gradients are computed on the CPU")


def check_module(module: nn.Module) -> None:
    """Refuse modules whose bits are not reproducible, or whose gradients cannot be added.

    Raises:
        ValueError: one line says what is refused and what would be right.
    """
    for name, part in module.named_modules():
        what = f"{name or 'the module'} ({type(part).__name__})"
        if isinstance(part, _torch.jit.ScriptModule):
            raise ValueError(
                f"{what} is a torch.jit.ScriptModule, which computes other bits in its first calls: give the "
                "module as it was before torch.jit"
            )
        if isinstance(part, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise ValueError(f"{what}: Kelp distributes the batch itself; give the module that is inside")
        if getattr(part, "sparse", False) is True and isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            raise ValueError(f"{what} has sparse gradients, which are not added up; sparse=False")
        if isinstance(part, _batch_norm) and part.track_running_stats and part.momentum is None:
            raise ValueError(
                f"{what} has momentum=None, a mean over all batches so far, which no worker sees; momentum=0.1"
            )
    for name, parameter in module.named_parameters():
        _check_tensor(f"parameter {name}", parameter)
    for buffer in buffers_of(module):
        _check_tensor(f"buffer {buffer.name}", buffer.value)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError("no parameter of the module requires a gradient; there is nothing to train")


def buffers_of(module: nn.Module) -> list[Buffer]:
    found: dict[int, Buffer] = {}
    for prefix, part in module.named_modules():
        for key, value in part._buffers.items():
            if value is not None and (value.is_floating_point() or value.is_complex()) and value.numel() > 0:
                name = f"{prefix}.{key}" if prefix else key
                found.setdefault(id(value), Buffer(name, [], value)).places.append((part, key))
    return list(found.values())


class BatchNormWatch:
    """Refuses batch norm over a single value while the smallest piece of a step is computed."""

    def __init__(self, module: nn.Module, sizes: str) -> None:
        self._handles = [
            part.register_forward_pre_hook(self._check(name, sizes))
            for name, part in module.named_modules()
            if isinstance(part, _batch_norm)
        ]

    def _check(self, name: str, sizes: str) -> Any:
        def check(part: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            if part.training and inputs[0].numel() == inputs[0].shape[1]:
                raise ValueError(f"{name or 'the module'} ({type(part).__name__}) norms a single value where {sizes}")

        return check

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


class Model:
    """The tensors of a module: parameters, parameters that are held (frozen), and buffers.

    Buffers that a training step changes are running statistics: each worker computes its own from the step's, and
    the shards take the mean over the samples. The others are held.
    """

    def __init__(self, module: nn.Module) -> None:
        check_module(module)
        self.module = module
        named = [(name, p) for name, p in module.named_parameters() if p.numel() > 0]
        self.names = [name for name, p in named if p.requires_grad]
        self.parameters = [p for _, p in named if p.requires_grad]
        self.held_names = [name for name, p in named if not p.requires_grad]
        self.held = [p for _, p in named if not p.requires_grad]
        self._bindable = [*self.parameters, *self.held]
        self.buffers = list(buffers_of(module))
        self.statistics = [False] * len(self.buffers)
        self._own = [tensor.detach() for tensor in self.tensors()]  # the module's original memory
        self._bound = self._newest = self._own
        self._gradient: Optional[list[torch.Tensor]] = None
        self._versions: list[int] = []
        self._gradient_versions: list[int] = []
        self._resting = {part for part in module.modules() if not part.training} if module.training else set()
        self._dropping: list[tuple[nn.Module, str, float]] = []  # dropout layers that are switched off, and their rates
        # Modules change these, never the memory of weights and gradients.
        self.scratch = [buffer.value.detach().clone() for buffer in self.buffers]

    def tensors(self) -> list[torch.Tensor]:
        """All tensors in the order of the plan."""
        return [*self.parameters, *self.held, *(buffer.value for buffer in self.buffers)]

    def tensor_names(self) -> list[str]:
        return [*self.names, *self.held_names, *(buffer.name for buffer in self.buffers)]

    def plan(self, core: _kelp.Worker, from_file: int) -> None:
        """Add the tensors to the worker's plan, each with values from the job's model.init."""
        statistic = [False] * (len(self.parameters) + len(self.held)) + self.statistics
        held = [False] * len(self.parameters) + [True] * len(self.held) + [not s for s in self.statistics]
        for name, own, s, h in zip(self.tensor_names(), self._own, statistic, held):
            core.plan_tensor(name, tuple(own.shape), from_file, 0.0, 1.0 if s else 0.0, h)

    def views(self, core: _kelp.Worker, memory: _kelp.Memory) -> list[torch.Tensor]:
        """Each tensor in a vector of weights or a gradient.

        None is a slice of another: those share a version counter, and a gradient that is written would then count
        as a change of a weight that backward still needs.
        """
        return [
            torch.frombuffer(memory, dtype=torch.float32, count=own.numel(), offset=4 * core.offset(i)).view(own.shape)
            for i, own in enumerate(self._own)
        ]

    # ---- the rehearsal ----

    def rehearsal_values(self) -> list[torch.Tensor]:
        """Values that depend only on names and shapes, because a script's initial values differ between processes."""
        values = []
        for i, own in enumerate(self._own):
            flat = own.flatten()
            if own.dim() < 2 and bool((flat == flat[0]).all()):
                values.append(own.clone())
                continue
            bound = math.sqrt(own.shape[0] / own.numel()) if own.dim() > 1 else 1 / math.sqrt(own.numel())
            generator = torch.Generator().manual_seed(i)
            values.append(torch.empty_like(own).uniform_(-bound, bound, generator=generator))
        return values

    def find_statistics(self, gradient: list[torch.Tensor]) -> None:
        """Note which buffers a training step changed, and put their new values into the gradient."""
        at = len(self.parameters) + len(self.held)
        for i, buffer in enumerate(self.buffers):
            now = buffer.now()
            if now is None or now.shape != buffer.value.shape or now.dtype != torch.float32:
                raise ValueError(f"buffer {buffer.name} has another shape or type after a step; it must stay as it was")
            if not _bits_equal(now, self._bound[at + i]):
                self.statistics[i] = True
                gradient[at + i].copy_(now.detach())

    def drop_nothing(self) -> None:
        """Switch dropout off: then a mean does not depend on the number of samples, and any other loss does."""
        for part in self.module.modules():
            key = "p" if isinstance(part, _dropout) else "dropout"
            if isinstance(part, (_dropout, nn.RNNBase, nn.MultiheadAttention)) and getattr(part, key) > 0:
                self._dropping.append((part, key, getattr(part, key)))
                setattr(part, key, 0.0)

    def drop_again(self) -> None:
        while self._dropping:
            part, key, before = self._dropping.pop()
            setattr(part, key, before)

    # ---- binding ----

    def bind(
        self, weights: list[torch.Tensor], gradient: Optional[list[torch.Tensor]], rehearsal: bool = False
    ) -> None:
        """Let the module compute with these weights and, in training, add its gradient to these tensors."""
        if weights is not self._bound:
            self._bound = weights
            for parameter, value in zip(self._bindable, weights):
                parameter.data = value
            if not rehearsal:
                self._newest = weights
        if gradient is not None and gradient is not self._gradient:
            for parameter, value in zip(self.parameters, gradient):
                parameter.grad = value
        self._gradient = gradient
        if not self._versions:
            self._versions = list(map(_version, self.parameters))
        if rehearsal and gradient is not None:
            self._gradient_versions = list(map(_version, gradient))
        if self.buffers:
            at = len(self._bindable)
            for buffer, scratch, value in zip(self.buffers, self.scratch, weights[at:]):
                scratch.copy_(value)
                buffer.put(scratch)
        # Autocast caches cast weights, which would be those of the weights before.
        torch.clear_autocast_cache()

    def set_training(self, training: bool) -> None:
        """Modules that were set to eval() before stay so."""
        self.module.train(training)
        if training:
            for part in self._resting:
                part.training = False

    def check_untouched(self) -> None:
        """Refuse a gradient that was changed before backward: the script wants another one than Kelp would use."""
        assert self._gradient is not None
        for name, gradient, version in zip(self.names, self._gradient, self._gradient_versions):
            if gradient._version != version:
                raise RuntimeError(
                    f"parameter {name}: its grad was changed before submit(), which runs backward; leave out "
                    "loss.backward(), zero_grad() and clip_grad_norm_() (train.clip_norm of settings= clips)"
                )

    def check_step(self) -> None:
        """Check that the gradient is in the bound memory, and that the weights did not change."""
        assert self._gradient is not None
        if not all(map(operator.is_, map(_grad, self.parameters), self._gradient)):
            raise RuntimeError(
                f"parameter {self._first(_grad, self._gradient)}: its grad was replaced; leave out zero_grad(), and "
                "let submit() run backward"
            )
        self.check_weights()

    def check_weights(self) -> None:
        """Check that the weights did not change. Binding other weights does not count as a change."""
        if list(map(_version, self.parameters)) != self._versions:
            raise RuntimeError(
                f"parameter {self._first(_version, self._versions)} was changed in place; shards update weights: "
                "leave out optimizer.step()"
            )

    def _first(self, attribute: Callable[[Any], Any], values: Sequence[object]) -> str:
        """The name of the first parameter whose attribute is another object."""
        rows = zip(self.names, self.parameters, values)
        return next(name for name, parameter, value in rows if attribute(parameter) is not value)

    def add_statistics(self, share: float) -> None:
        """Add the buffers' values after the step to the gradient, times the batch's share of the samples."""
        assert self._gradient is not None
        at = len(self.parameters) + len(self.held)
        for i, buffer in enumerate(self.buffers):
            now = buffer.now()
            if self.statistics[i]:
                assert now is not None
                self._gradient[at + i].add_(now, alpha=share)
            elif now is not self.scratch[i] or not _bits_equal(now, self._bound[at + i]):
                raise RuntimeError(
                    f"buffer {buffer.name} was changed in this step, but not in those before the job began; a running "
                    "statistic changes in each step"
                )

    def release(self) -> None:
        """Give the module its own memory, with the job's newest weights that were bound."""
        self.drop_again()
        self._versions = []
        with torch.no_grad():
            for own, value in zip(self._own, self._newest):
                if own is not value:
                    own.copy_(value)
        for parameter, own in zip(self._bindable, self._own):
            parameter.data = own
            parameter.grad = None
        for buffer in self.buffers:
            buffer.put(buffer.value)
        self._bound = self._newest = self._own
        self._gradient = None
