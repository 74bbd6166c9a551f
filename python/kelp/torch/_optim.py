"""Translate torch's optimizers and learning-rate schedulers into keys of a job."""

from __future__ import annotations

import fnmatch
import math
import re
from typing import Any, Callable, Iterable, Mapping, Optional

import torch

__all__ = ["job_keys"]

# Largest value below 1 that the keys with an open range take.
_BELOW_ONE = 1.0 - 2.0**-53
_U32_MAX = 2**32 - 1
_EXCLUDE_BYTES = 4095

# The key for a setting of torch, its smallest and its largest value (docs/JOB.md).
_Row = tuple[str, str, float, float]
_COMMON: tuple[_Row, ...] = (("weight_decay", "train.weight_decay", 0.0, 1000.0),)
_EPS: _Row = ("eps", "train.eps", 5e-324, 1.0)
_OPTIMIZERS: Mapping[type, tuple[str, tuple[_Row, ...]]] = {
    torch.optim.SGD: (
        "sgd",
        (
            ("momentum", "train.momentum", 0.0, 1.0),
            ("dampening", "train.dampening", 0.0, 1.0),
            ("nesterov", "train.nesterov", 0, 1),
        ),
    ),
    torch.optim.Adam: ("adam", (("amsgrad", "train.amsgrad", 0, 1), _EPS)),
    torch.optim.AdamW: ("adamw", (("amsgrad", "train.amsgrad", 0, 1), _EPS)),
    torch.optim.Adagrad: (
        "adagrad",
        (
            ("lr_decay", "train.lr_decay", 0.0, 1000.0),
            ("initial_accumulator_value", "train.initial_accumulator", 0.0, 1000.0),
            _EPS,
        ),
    ),
    torch.optim.RMSprop: (
        "rmsprop",
        (
            ("alpha", "train.alpha", 0.0, _BELOW_ONE),
            ("momentum", "train.momentum", 0.0, 1.0),
            ("centered", "train.centered", 0, 1),
            _EPS,
        ),
    ),
    torch.optim.Adadelta: ("adadelta", (("rho", "train.rho", 0.0, _BELOW_ONE), _EPS)),
}

# Settings that choose how torch computes the same update.
_IMPLEMENTATIONS = {"foreach", "fused", "capturable"}
# Settings without a key, and the only value of each that has no effect.
_NOT_THERE: Mapping[str, Any] = {"maximize": False, "differentiable": False}
_WHY = {
    "maximize": "Kelp minimizes: negate the loss",
    "differentiable": "Kelp's updates cannot be differentiated",
}

_schedulers = torch.optim.lr_scheduler


def job_keys(
    optimizer: torch.optim.Optimizer,
    scheduler: Optional[object] = None,
    *,
    module: Optional[torch.nn.Module] = None,
    unit: str = "epoch",
    units: Optional[int] = None,
    monitor: str = "val/loss",
) -> dict[str, str]:
    r"""Returns the keys of a job whose updates are those of a torch optimizer.

    The optimizer and the scheduler are read. Neither is stepped, by this function or later.

    Args:
        optimizer: one of SGD, Adam, AdamW, Adagrad, RMSprop, Adadelta, before its first step.
            Its groups may differ in ``weight_decay`` alone, between one value and 0, and only
            where :attr:`module` is given.
        scheduler: ``None`` or one of StepLR, MultiStepLR, ExponentialLR, LinearLR,
            CosineAnnealingLR, CosineAnnealingWarmRestarts, ReduceLROnPlateau; or SequentialLR of a
            warm-up by LinearLR and one of the two cosine schedulers.
        module: the module of these parameters. It gives the names of those that do not decay, and
            the optimizer must then have all of its parameters that require a gradient.
        unit: what the script steps the scheduler after: ``"epoch"`` or ``"step"``.
        units: epochs or steps of the whole run, where they are known: a cosine that would go up
            again before the end of it is refused.
        monitor: the job's ``train.monitor``, for ReduceLROnPlateau.

    Returns:
        Keys of docs/JOB.md with their values as text, such as ``{"train.optimizer": "adam"}``.

    Raises:
        ValueError: Kelp has no such update; one line says what is refused and what would be right.
    """
    group = _one_group(optimizer, module)
    if unit not in ("epoch", "step"):
        raise ValueError(f'scheduler unit {unit!r}; it is "epoch" or "step"')
    schedule = _scheduler_keys(optimizer, scheduler, unit, units, monitor)
    keys = _optimizer_keys(optimizer, group, scheduler)
    excluded = _without_decay(optimizer, module)
    if excluded:
        keys["train.decay_exclude"] = _listed(excluded)
    return {**keys, **schedule}


def _name(thing: object) -> str:
    return type(thing).__name__


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return repr(float(value))


def _listed(patterns: Iterable[str]) -> str:
    """In a form for the command line and YAML, where a plain `*` has another meaning."""
    return "[" + ", ".join(f'"{pattern}"' for pattern in patterns) + "]"


def _number(owner: object, name: str, value: Any, low: float, high: float) -> float:
    number = float(value)
    if not (low <= number <= high):
        if name == "eps" and number == 0:
            raise ValueError(f"{_name(owner)}: eps=0; Kelp takes 0 for the default: give a small number, such as 1e-30")
        raise ValueError(f"{_name(owner)}: {name}={value}; Kelp takes {low:g} to {high:g}")
    return number


def _whole(owner: object, name: str, value: Any, low: int = 1) -> str:
    if not isinstance(value, int) or not (low <= value <= _U32_MAX):
        raise ValueError(f"{_name(owner)}: {name}={value}; Kelp takes whole numbers from {low} on")
    return str(value)


# ---- optimizers ----------------------------------------------------------------------------------


def _one_group(optimizer: torch.optim.Optimizer, module: Optional[torch.nn.Module]) -> dict[str, Any]:
    """The settings that all groups share, with the largest weight decay among them."""
    if type(optimizer) not in _OPTIMIZERS:
        known = ", ".join(kind.__name__ for kind in _OPTIMIZERS)
        raise ValueError(f"Kelp has no optimizer {_name(optimizer)}; it has those of torch.optim named {known}")
    if any(_has_stepped(state) for state in optimizer.state.values()):
        raise ValueError(
            f"the {_name(optimizer)} has taken steps, of which Kelp knows nothing: give it as it is before the first"
        )
    groups = optimizer.param_groups
    first = groups[0]
    for number, other in enumerate(groups[1:], 1):
        for name in sorted(first.keys() | other.keys()):
            if name in ("params", "weight_decay", "name") or first.get(name) == other.get(name):
                continue
            raise ValueError(
                f"{_name(optimizer)}: parameter groups 0 and {number} differ in {name} ({first.get(name)} and "
                f"{other.get(name)}); in Kelp groups differ in weight_decay alone, which is one value or 0"
            )
    decays = sorted({float(group["weight_decay"]) for group in groups})
    if len(decays) > 2 or (len(decays) == 2 and decays[0] != 0):
        raise ValueError(
            f"{_name(optimizer)}: weight_decay is {decays[0]:g} in one parameter group and {decays[1]:g} in another; "
            "Kelp has one value, and parameters without"
        )
    if len(decays) == 2 and module is None:
        raise ValueError(f"{_name(optimizer)}: weight_decay differs between groups; give module= for the names")
    return {**first, "weight_decay": decays[-1]}


def _has_stepped(state: Mapping[str, Any]) -> bool:
    return float(state.get("step", 0)) > 0 or state.get("momentum_buffer") is not None


def _optimizer_keys(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], scheduler: Optional[object]
) -> dict[str, str]:
    word, rows = _OPTIMIZERS[type(optimizer)]
    settings = dict(group)
    settings.pop("params")
    settings.pop("name", None)
    if settings.pop("decoupled_weight_decay", False):  # newer torch: Adam that computes like AdamW
        word = "adamw"
    rate = settings.pop("lr")
    initial = settings.pop("initial_lr", None)
    if scheduler is None and initial is not None:
        raise ValueError(f"the {_name(optimizer)} has a scheduler that was not given: give it, or make no scheduler")
    if scheduler is not None and initial is not None:
        rate = initial  # a scheduler's constructor may have changed lr
    keys = {"train.optimizer": word, "train.lr": _text(_number(optimizer, "lr", rate, 0.0, 1000.0))}
    if "betas" in settings:
        for name, value in zip(("beta1", "beta2"), settings.pop("betas")):
            keys[f"train.{name}"] = _text(_number(optimizer, name, value, 0.0, _BELOW_ONE))
    for name, key, low, high in _COMMON + rows:
        value = settings.pop(name)
        number = _number(optimizer, name, value, low, high)
        keys[key] = _text(value if isinstance(value, bool) else number)
    for name, value in settings.items():
        if name in _IMPLEMENTATIONS:
            continue
        if name not in _NOT_THERE:
            raise ValueError(f"{_name(optimizer)}: Kelp does not know the setting {name}={value}")
        if value != _NOT_THERE[name]:
            raise ValueError(f"{_name(optimizer)}: {name}={value}: {_WHY[name]}")
    return keys


def _without_decay(optimizer: torch.optim.Optimizer, module: Optional[torch.nn.Module]) -> list[str]:
    """Patterns for the parameters of groups without weight decay, if other groups have it."""
    if module is None:
        return []
    decay: dict[int, bool] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            decay[id(parameter)] = float(group["weight_decay"]) != 0
    names = {id(parameter): name for name, parameter in module.named_parameters() if parameter.requires_grad}
    for identity, name in names.items():
        if identity not in decay:
            raise ValueError(
                f"the {_name(optimizer)} does not have {name}: give it all parameters, or freeze this one by "
                "requires_grad_(False)"
            )
    known = {id(parameter) for parameter in module.parameters()}
    if not decay.keys() <= known:
        raise ValueError(f"the {_name(optimizer)} has a parameter that is not one of the module's")
    kept = [name for identity, name in names.items() if decay[identity]]
    excluded = [name for identity, name in names.items() if not decay[identity]]
    if not kept:
        return []
    return _patterns(optimizer, excluded, kept)


def _patterns(optimizer: torch.optim.Optimizer, excluded: Iterable[str], kept: Iterable[str]) -> list[str]:
    """For each name the shortest `*.ending` that matches no name in ``kept``, or else the name itself."""
    kept = list(kept)
    patterns: list[str] = []
    for name in excluded:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            continue
        parts = re.sub(r"[^\w.\-]", "?", name).split(".")
        endings = ["*." + ".".join(parts[at:]) for at in range(len(parts) - 1, 0, -1)]
        for pattern in [*endings, ".".join(parts)]:
            if not any(fnmatch.fnmatchcase(other, pattern) for other in kept):
                patterns.append(pattern)
                break
        else:
            raise ValueError(f"no pattern of train.decay_exclude tells {name} from the parameters that decay")
    if len(_listed(patterns)) > _EXCLUDE_BYTES:
        raise ValueError(
            f"{_name(optimizer)}: the {len(patterns)} patterns of parameters without weight decay are longer than "
            f"the {_EXCLUDE_BYTES} bytes of train.decay_exclude"
        )
    return patterns


# ---- schedulers ----------------------------------------------------------------------------------


def _scheduler_keys(
    optimizer: torch.optim.Optimizer, scheduler: Optional[Any], unit: str, units: Optional[int], monitor: str
) -> dict[str, str]:
    if scheduler is None:
        return {"train.schedule": "constant"}
    translate = _SCHEDULERS.get(type(scheduler))
    if translate is None:
        known = ", ".join(kind.__name__ for kind in _SCHEDULERS)
        why = _WHY_NOT.get(_name(scheduler), f"Kelp has {known}")
        raise ValueError(f"Kelp has no scheduler {_name(scheduler)}: {why}")
    if scheduler.optimizer is not optimizer:
        raise ValueError(f"the {_name(scheduler)} was made for another optimizer")
    if scheduler.last_epoch != 0:
        raise ValueError(f"the {_name(scheduler)} has taken steps: give it as it is before the first")
    keys = translate(scheduler)
    if isinstance(scheduler, _schedulers.ReduceLROnPlateau):
        _check_direction(scheduler, monitor)
        return keys
    total = keys.get("train.schedule_total")
    if keys["train.schedule"] == "cosine" and total is not None and units is not None and units > int(total):
        raise ValueError(
            f"{_name(scheduler)}: the run has {units} {unit}s, and its rate would go up again after {total}: "
            f"T_max is {units} for one that ends low, CosineAnnealingWarmRestarts begins again"
        )
    keys["train.schedule_unit"] = unit
    return keys


def _step(scheduler: Any) -> dict[str, str]:
    return {
        "train.schedule": "step",
        "train.schedule_step": _whole(scheduler, "step_size", scheduler.step_size),
        "train.gamma": _text(_number(scheduler, "gamma", scheduler.gamma, 0.0, 1000.0)),
    }


def _multistep(scheduler: Any) -> dict[str, str]:
    milestones = sorted(scheduler.milestones.items())
    for at, times in milestones:
        if times != 1:
            raise ValueError(f"MultiStepLR: milestone {at} stands there {times} times; in Kelp milestones ascend")
    return {
        "train.schedule": "multistep",
        "train.milestones": "[" + ", ".join(_whole(scheduler, "milestone", at, 0) for at, _ in milestones) + "]",
        "train.gamma": _text(_number(scheduler, "gamma", scheduler.gamma, 0.0, 1000.0)),
    }


def _exponential(scheduler: Any) -> dict[str, str]:
    return {
        "train.schedule": "exponential",
        "train.gamma": _text(_number(scheduler, "gamma", scheduler.gamma, 0.0, 1000.0)),
    }


def _linear(scheduler: Any) -> dict[str, str]:
    if scheduler.end_factor != 1.0:
        raise ValueError(f"LinearLR: end_factor={scheduler.end_factor}; in Kelp the rate ends at lr: end_factor=1")
    return {
        "train.schedule": "linear",
        "train.schedule_total": _whole(scheduler, "total_iters", scheduler.total_iters),
        "train.start_factor": _text(_number(scheduler, "start_factor", scheduler.start_factor, 0.0, 1.0)),
    }


def _lr_min(scheduler: Any, name: str, value: Any) -> str:
    number = _number(scheduler, name, value, 0.0, 1000.0)
    group = scheduler.optimizer.param_groups[0]
    rate = float(group.get("initial_lr", group["lr"]))
    if number > rate:
        raise ValueError(f"{_name(scheduler)}: {name}={value} is over lr={rate:g}")
    return _text(number)


def _cosine(scheduler: Any) -> dict[str, str]:
    return {
        "train.schedule": "cosine",
        "train.schedule_total": _whole(scheduler, "T_max", scheduler.T_max),
        "train.lr_min": _lr_min(scheduler, "eta_min", scheduler.eta_min),
    }


def _restarts(scheduler: Any) -> dict[str, str]:
    factor = _whole(scheduler, "T_mult", scheduler.T_mult)
    if scheduler.T_mult > 1000:
        raise ValueError(f"CosineAnnealingWarmRestarts: T_mult={scheduler.T_mult}; Kelp takes 1 to 1000")
    return {
        "train.schedule": "cosine_restarts",
        "train.schedule_total": _whole(scheduler, "T_0", scheduler.T_0),
        "train.restart_factor": factor,
        "train.lr_min": _lr_min(scheduler, "eta_min", scheduler.eta_min),
    }


def _sequential(scheduler: Any) -> dict[str, str]:
    parts = scheduler._schedulers
    kinds = [type(part) for part in parts]
    if len(kinds) != 2 or kinds[0] is not _schedulers.LinearLR or kinds[1] not in (
        _schedulers.CosineAnnealingLR,
        _schedulers.CosineAnnealingWarmRestarts,
    ):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(
            f"SequentialLR of {names}; Kelp has LinearLR before CosineAnnealingLR or CosineAnnealingWarmRestarts"
        )
    warmup, (milestone,) = parts[0], scheduler._milestones
    count = int(_whole(warmup, "total_iters", warmup.total_iters))
    if milestone != count:
        raise ValueError(f"SequentialLR: milestone {milestone} is not the end of the warm-up, total_iters={count}")
    if warmup.end_factor != 1.0 or not math.isclose(warmup.start_factor * (count + 1), 1.0, rel_tol=1e-9):
        raise ValueError(
            f"LinearLR: start_factor={warmup.start_factor:g}, end_factor={warmup.end_factor:g}; in Kelp a warm-up over "
            f"{count} begins at 1/{count + 1} and ends at 1"
        )
    keys = _cosine(parts[1]) if kinds[1] is _schedulers.CosineAnnealingLR else _restarts(parts[1])
    keys["train.warmup"] = str(count)
    if keys["train.schedule"] == "cosine":
        keys["train.schedule_total"] = str(int(keys["train.schedule_total"]) + count)
    return keys


def _check_direction(scheduler: Any, monitor: str) -> None:
    rising = monitor in ("val/accuracy", "val/auc")
    if (scheduler.mode == "max") != rising:
        raise ValueError(
            f'ReduceLROnPlateau: mode="{scheduler.mode}", but the better {monitor} is the '
            f'{"higher" if rising else "lower"} one; give mode="{"max" if rising else "min"}", or another monitor'
        )


def _plateau(scheduler: Any) -> dict[str, str]:
    if scheduler.threshold_mode != "rel":
        raise ValueError(f'ReduceLROnPlateau: threshold_mode="{scheduler.threshold_mode}"; Kelp has "rel"')
    if scheduler.cooldown != 0:
        raise ValueError(f"ReduceLROnPlateau: cooldown={scheduler.cooldown}; Kelp has none: cooldown=0")
    if scheduler.eps != 1e-8:
        raise ValueError(f"ReduceLROnPlateau: eps={scheduler.eps:g}; Kelp has 1e-08")
    lowest = set(scheduler.min_lrs)
    if len(lowest) != 1:
        raise ValueError("ReduceLROnPlateau: min_lr differs between groups; Kelp has one")
    return {
        "train.schedule": "plateau",
        "train.plateau_patience": _whole(scheduler, "patience", scheduler.patience, 0),
        "train.plateau_factor": _text(_number(scheduler, "factor", scheduler.factor, 0.0, _BELOW_ONE)),
        "train.plateau_threshold": _text(_number(scheduler, "threshold", scheduler.threshold, 0.0, 1.0)),
        "train.lr_min": _lr_min(scheduler, "min_lr", lowest.pop()),
    }


_SCHEDULERS: Mapping[type, Callable[[Any], dict[str, str]]] = {
    _schedulers.StepLR: _step,
    _schedulers.MultiStepLR: _multistep,
    _schedulers.ExponentialLR: _exponential,
    _schedulers.LinearLR: _linear,
    _schedulers.CosineAnnealingLR: _cosine,
    _schedulers.CosineAnnealingWarmRestarts: _restarts,
    _schedulers.SequentialLR: _sequential,
    _schedulers.ReduceLROnPlateau: _plateau,
}
_WHY_NOT = {
    "LambdaLR": "a function has no place in a job file; MultiStepLR gives steps, SequentialLR a warm-up",
    "MultiplicativeLR": "a function has no place in a job file; MultiStepLR gives steps",
    "OneCycleLR": "SequentialLR of LinearLR and CosineAnnealingLR rises and falls",
}
