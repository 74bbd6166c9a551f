"""kelp.torch._optim: what torch's optimizers and schedulers become, and that Kelp then does as they do.

The reference is torch itself. Kelp's part is its own C code (tests/python/updates.c), to which the keys are given as
`kelp train --set` takes them.
"""

import ctypes
import os
import unittest

import torch
from torch.optim import lr_scheduler

from kelp.torch._optim import job_keys


class Setting(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class Updates:
    """A shard's arithmetic for these keys."""

    def __init__(self, keys, count=1, **others):
        path = os.path.join(os.environ["KELP_TEST_PROGRAMS"], "kelp-python-updates.so")
        self.library = ctypes.CDLL(path)
        self.library.updates_open.restype = ctypes.c_void_p
        self.library.updates_next_rate.restype = ctypes.c_double
        base = {"model.kind": "mlp", "data.kind": "synthetic", "train.epochs": "1000"}
        settings = {**base, **others, **keys}
        array = (Setting * len(settings))(*[(key.encode(), value.encode()) for key, value in settings.items()])
        error = ctypes.create_string_buffer(1000)
        self.handle = self.library.updates_open(
            array, len(settings), ctypes.c_uint64(count), error, ctypes.c_size_t(len(error))
        )
        if not self.handle:
            raise ValueError(error.value.decode())
        self.handle = ctypes.c_void_p(self.handle)

    def step(self, lr, number, weights, gradient):
        finite = self.library.updates_step(
            self.handle,
            ctypes.c_double(lr),
            ctypes.c_uint64(number),
            ctypes.c_void_p(weights.data_ptr()),
            ctypes.c_void_p(gradient.data_ptr()),
        )
        assert finite

    def next_rate(self, val_loss=1.0):
        return self.library.updates_next_rate(self.handle, ctypes.c_double(val_loss))

    def close(self):
        self.library.updates_close(self.handle)


def parameters(count=1000):
    generator = torch.Generator().manual_seed(7)
    return torch.nn.Parameter(torch.randn(count, generator=generator)), generator


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd decay": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "sgd dampening": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=0.003),
    "adam settings": lambda p: torch.optim.Adam(p, lr=0.003, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.02),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.003, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.003),
    "adamw settings": lambda p: torch.optim.AdamW(p, lr=0.003, betas=(0.8, 0.95), weight_decay=0.1, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02),
    "adagrad settings": lambda p: torch.optim.Adagrad(
        p, lr=0.02, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.5, eps=1e-5
    ),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.004),
    "rmsprop settings": lambda p: torch.optim.RMSprop(
        p, lr=0.004, alpha=0.9, momentum=0.7, centered=True, weight_decay=0.01, eps=1e-6
    ),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.9),
    "adadelta settings": lambda p: torch.optim.Adadelta(p, lr=0.9, rho=0.8, eps=1e-4, weight_decay=0.01),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.003, foreach=True),
}

SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, gamma=0.7),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [7, 2, 12], gamma=0.3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.2, total_iters=6),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.001),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, T_mult=2, eta_min=0.01),
    "warm-up, cosine": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, start_factor=1 / 6, total_iters=5), lr_scheduler.CosineAnnealingLR(o, 15)],
        milestones=[5],
    ),
    "warm-up, restarts": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, start_factor=1 / 4, total_iters=3), lr_scheduler.CosineAnnealingWarmRestarts(o, 5)],
        milestones=[3],
    ),
}


class SameUpdates(unittest.TestCase):
    def test_optimizers(self):
        """Ten steps with the same gradients: the same weights but for the last bits of float32."""
        for name, make in OPTIMIZERS.items():
            with self.subTest(name):
                parameter, generator = parameters()
                optimizer = make([parameter])
                keys = job_keys(optimizer)
                weights = parameter.detach().clone()
                updates = Updates(keys, parameter.numel())
                for number in range(1, 11):
                    gradient = torch.randn(parameter.shape, generator=generator)
                    parameter.grad = gradient.clone()
                    optimizer.step()
                    updates.step(float(keys["train.lr"]), number, weights, gradient)
                    torch.testing.assert_close(weights, parameter.detach(), rtol=2e-6, atol=1e-6)
                updates.close()

    def test_schedulers(self):
        """Each rate of twenty epochs, and of twenty steps."""
        for name, make in SCHEDULERS.items():
            for unit in ("epoch", "step"):
                with self.subTest(name, unit=unit):
                    parameter, _ = parameters(1)
                    optimizer = torch.optim.SGD([parameter], lr=0.1)
                    scheduler = make(optimizer)
                    updates = Updates(job_keys(optimizer, scheduler, unit=unit))
                    for _ in range(20):
                        self.assertAlmostEqual(updates.next_rate(), optimizer.param_groups[0]["lr"], delta=1e-12)
                        optimizer.step()
                        scheduler.step()
                    updates.close()

    def test_plateau(self):
        """The rate follows the validation loss as torch's does."""
        parameter, _ = parameters(1)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, threshold=0.01, min_lr=0.02)
        updates = Updates(job_keys(optimizer, scheduler))
        losses = [1, 0.9, 0.899, 0.898, 0.897, 0.7, 0.71, 0.72, 0.7, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]
        rates = set()
        for loss in losses:
            self.assertAlmostEqual(updates.next_rate(loss), optimizer.param_groups[0]["lr"], delta=1e-12)
            rates.add(optimizer.param_groups[0]["lr"])
            scheduler.step(loss)
        self.assertEqual(len(rates), 4)
        updates.close()

    def test_one_step_of_training(self):
        """The keys of one call: a rate that the scheduler's constructor has changed is not the job's."""
        parameter, _ = parameters(1)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        scheduler = lr_scheduler.LinearLR(optimizer, start_factor=0.25)
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.025)
        self.assertEqual(job_keys(optimizer, scheduler)["train.lr"], "0.1")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.head = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 2), "b": torch.nn.Linear(4, 2)})


class Groups(unittest.TestCase):
    def groups(self, module, without):
        decayed = [p for n, p in module.named_parameters() if not without(n)]
        plain = [p for n, p in module.named_parameters() if without(n)]
        return torch.optim.AdamW([{"params": plain, "weight_decay": 0.0}, {"params": decayed}], weight_decay=0.1)

    def test_patterns(self):
        """Parameters without decay are named by what their names end with, where that suffices."""
        module = Net()
        keys = job_keys(self.groups(module, lambda n: n.endswith("bias") or "norm" in n or n == "scale"), module=module)
        self.assertEqual(keys["train.weight_decay"], "0.1")
        self.assertEqual(keys["train.decay_exclude"], '["scale", "*.bias", "norm.weight"]')
        Updates(keys).close()

    def test_patterns_leave_others(self):
        """A pattern never names a parameter that decays."""
        module = Net()
        keys = job_keys(self.groups(module, lambda n: n == "head.a.bias"), module=module)
        self.assertEqual(keys["train.decay_exclude"], '["*.a.bias"]')

    def test_two_groups_without_difference(self):
        """Groups that are alike are one."""
        module = Net()
        optimizer = torch.optim.Adam([{"params": [p]} for p in module.parameters()])
        self.assertNotIn("train.decay_exclude", job_keys(optimizer, module=module))

    def test_all_parameters(self):
        """What the optimizer does not have must not be updated, and Kelp would."""
        module = Net()
        optimizer = torch.optim.Adam([p for n, p in module.named_parameters() if n != "first.bias"])
        with self.assertRaisesRegex(ValueError, r"does not have first\.bias: .* requires_grad_\(False\)"):
            job_keys(optimizer, module=module)
        module.first.bias.requires_grad_(False)
        self.assertEqual(job_keys(optimizer, module=module)["train.optimizer"], "adam")

    def test_other_modules(self):
        optimizer = torch.optim.Adam([*Net().parameters(), *(module := Net()).parameters()])
        with self.assertRaisesRegex(ValueError, "not one of the module's"):
            job_keys(optimizer, module=module)


class Refused(unittest.TestCase):
    def refused(self, line, optimizer, scheduler=None, **others):
        with self.assertRaises(ValueError) as caught:
            job_keys(optimizer, scheduler, **others)
        text = str(caught.exception)
        self.assertNotIn("\n", text)
        self.assertIn(line, text)

    def test_optimizers(self):
        """Each is one line that says what Kelp has."""
        p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
        optim = torch.optim

        class Mine(optim.SGD):
            pass

        cases = {
            "has no optimizer NAdam; it has those of torch.optim named SGD, Adam": optim.NAdam([p]),
            "has no optimizer LBFGS": optim.LBFGS([p]),
            "has no optimizer Mine": Mine([p], lr=0.1),
            "Adam: maximize=True: Kelp minimizes: negate the loss": optim.Adam([p], maximize=True),
            "groups 0 and 1 differ in lr (0.1 and 0.2)": optim.SGD(
                [{"params": [p]}, {"params": [q], "lr": 0.2}], lr=0.1
            ),
            "groups 0 and 1 differ in momentum": optim.SGD([{"params": [p]}, {"params": [q], "momentum": 0.9}], lr=0.1),
            "weight_decay is 0.1 in one parameter group and 0.2": optim.SGD(
                [{"params": [p], "weight_decay": 0.1}, {"params": [q], "weight_decay": 0.2}], lr=0.1
            ),
            "give module= for the names": optim.SGD(
                [{"params": [p], "weight_decay": 0.0}, {"params": [q], "weight_decay": 0.2}], lr=0.1
            ),
            "Adam: eps=0; Kelp takes 0 for the default": optim.Adam([p], eps=0),
            "SGD: lr=2000; Kelp takes 0 to 1000": optim.SGD([p], lr=2000),
            "SGD: momentum=1.5; Kelp takes 0 to 1": optim.SGD([p], lr=0.1, momentum=1.5),
            "RMSprop: alpha=1.5": optim.RMSprop([p], alpha=1.5),
            "SGD: lr=nan": optim.SGD([p], lr=float("nan")),
        }
        for line, optimizer in cases.items():
            with self.subTest(line):
                self.refused(line, optimizer)

    def test_steps_taken(self):
        """Kelp's shards begin with empty momentum and moments."""
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad):
            p = torch.nn.Parameter(torch.ones(2))
            optimizer = kind([p], lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
            job_keys(optimizer)
            p.grad = torch.ones(2)
            optimizer.step()
            with self.subTest(kind.__name__):
                self.refused("has taken steps", optimizer)

    def test_schedulers(self):
        def make(kind, *arguments, **settings):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
            return optimizer, kind(optimizer, *arguments, **settings)

        s = lr_scheduler
        cases = {
            "no scheduler LambdaLR: a function has no place in a job file": make(s.LambdaLR, lambda n: 1.0),
            "no scheduler OneCycleLR: SequentialLR": make(s.OneCycleLR, 0.1, total_steps=10),
            "no scheduler ConstantLR: Kelp has StepLR": make(s.ConstantLR),
            "milestone 3 stands there 2 times": make(s.MultiStepLR, [3, 3]),
            "LinearLR: end_factor=0.5": make(s.LinearLR, end_factor=0.5),
            "CosineAnnealingLR: eta_min=0.5 is over lr=0.1": make(s.CosineAnnealingLR, 3, eta_min=0.5),
            'mode="max", but the better val/loss is the lower one': make(s.ReduceLROnPlateau, mode="max"),
            'threshold_mode="abs"': make(s.ReduceLROnPlateau, threshold_mode="abs"),
            "cooldown=2": make(s.ReduceLROnPlateau, cooldown=2),
        }
        for line, pair in cases.items():
            with self.subTest(line):
                self.refused(line, *pair)
        job_keys(*make(s.ReduceLROnPlateau, mode="max"), monitor="val/accuracy")

    def test_cosine_over_its_end(self):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 10)
        job_keys(optimizer, scheduler, units=10)
        self.refused("the run has 12 epochs, and its rate would go up again after 10", optimizer, scheduler, units=12)

    def test_warm_up(self):
        def sequential(start, total, milestone):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
            parts = [
                lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=total),
                lr_scheduler.CosineAnnealingLR(optimizer, 10),
            ]
            return optimizer, lr_scheduler.SequentialLR(optimizer, parts, milestones=[milestone])

        self.refused("a warm-up over 4 begins at 1/5 and ends at 1", *sequential(0.1, 4, 4))
        self.refused("milestone 3 is not the end of the warm-up, total_iters=4", *sequential(0.2, 4, 3))

    def test_forgotten_scheduler(self):
        """A scheduler that was made and not given would else have no effect."""
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        scheduler = lr_scheduler.StepLR(optimizer, 3)
        self.refused("has a scheduler that was not given", optimizer)
        other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        self.refused("was made for another optimizer", other, scheduler)
        optimizer.step()
        scheduler.step()
        self.refused("the StepLR has taken steps", optimizer, scheduler)
        self.refused("scheduler unit 'batch'", other, unit="batch")


if __name__ == "__main__":
    unittest.main()
