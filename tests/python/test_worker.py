"""kelp.Worker and kelp.torch.Worker without a job behind them: the loop, the plan, and what is refused."""

import functools
import json
import os
import signal
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import kelp
import kelp.torch
from stub import Core

TRAIN, VAL, PREDICT = 1, 2, 6


def rows(count=20):
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.rand(count, 4, generator=generator), torch.rand(count, 2, generator=generator))


def mlp():
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


class Joined(unittest.TestCase):
    """Tests with a worker that has a place in a job."""

    def setUp(self):
        patch = mock.patch("kelp._process.is_worker", return_value=True)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(torch.set_grad_enabled, True)

    def worker(self, core, model, **arguments):
        arguments.setdefault("val", rows(5))
        with mock.patch("kelp._process.open_worker", return_value=core):
            return kelp.torch.Worker(model, rows(), **arguments)

    def run_loop(self, core, model, loss_fn=F.mse_loss, **arguments):
        with self.worker(core, model, **arguments) as worker:
            for batch in worker:
                x, y = batch.data
                batch.submit(loss_fn(model(x), y))
        return core


class Loop(Joined):
    def test_lanes(self):
        """Gradients are those of the mean over the step, evaluations have none, and data are the samples asked for."""
        model = mlp()
        plain = mlp()
        core = Core([(TRAIN, [3, 5, 7, 11]), (VAL, [0, 1, 2])])
        kinds = []
        with self.worker(core, model) as worker:
            for batch in worker:
                if core.joined and not kinds:
                    with torch.no_grad():
                        for name, parameter in plain.named_parameters():
                            for vector in core.vectors:
                                core.values(vector, name).copy_(parameter)
                x, y = batch.data
                self.assertEqual(x.tolist(), (rows() if batch.training else rows(5)).tensors[0][batch.indices].tolist())
                self.assertEqual(torch.is_grad_enabled(), batch.training)
                self.assertEqual(model.training, batch.training)
                batch.submit(F.mse_loss(model(x), y), correct=2)
                kinds.append((batch.part, batch.rehearsal)) if not batch.rehearsal else None
        self.assertEqual(kinds, [("train", False), ("val", False)])
        x, y = rows()[[3, 5, 7, 11]]
        loss = F.mse_loss(plain(x), y)
        (loss / 2).backward()
        for name, parameter in plain.named_parameters():
            self.assertTrue(torch.equal(core.values(bytearray(core.gradients[0]), name), parameter.grad), name)
        self.assertEqual(core.sums[0], (0, loss.item() * 4))
        self.assertEqual(dict(core.sums[1:3]), {9: 2.0, 4: 4.0})
        self.assertEqual(core.data[:3], (20, 5, 0))

    def test_sums(self):
        """A sum of one's own has the name that the job gave it."""
        model = mlp()
        core = Core([(VAL, [0, 1, 2])], model__sums="[hits, far=min]")
        with self.worker(core, model, sums=["hits", "far=min"]) as worker:
            for batch in worker:
                x, y = batch.data
                batch.submit(F.mse_loss(model(x), y), hits=torch.tensor(2), far=0.5, correct=1)
        self.assertEqual(core.sums[1:], [("hits", 2.0), ("far", 0.5), (9, 1.0), (4, 3.0)])

    def test_plan(self):
        """Frozen parameters and buffers that stay are held, tied ones stand there once, statistics are averaged."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)
                self.b = nn.Linear(4, 4)
                self.b.weight = self.a.weight
                self.b.bias.requires_grad_(False)
                self.norm = nn.BatchNorm1d(4)
                self.register_buffer("scale", torch.arange(4.0))
                self.last = nn.Linear(4, 2)

            def forward(self, x):
                return self.last(self.norm(self.b(self.a(x))) * self.scale)

        core = self.run_loop(Core(), Net())
        self.assertEqual(
            [(name, what) for name, _, _, what in core.tensors],
            [("a.weight", "parameter"), ("a.bias", "parameter"),
             ("norm.weight", "parameter"), ("norm.bias", "parameter"),
             ("last.weight", "parameter"), ("last.bias", "parameter"), ("b.bias", "held"), ("scale", "held"),
             ("norm.running_mean", "statistic"), ("norm.running_var", "statistic")],
        )  # fmt: skip

    def test_answer(self):
        """What is computed decides it, not what the script began with; another loss is another answer."""
        answers = [self.run_loop(Core(), mlp(), loss).answer for loss in (F.mse_loss, F.mse_loss, F.l1_loss)]
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0], answers[2])

    def test_end(self):
        """The module keeps the newest weights in memory of its own, and is as free as before."""
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        core = Core([(TRAIN, [1, 2, 3, 4])])
        with self.worker(core, model, optimizer=optimizer) as worker:
            for batch in worker:
                if core.joined:
                    core.values(core.vectors[1], "0.bias").fill_(3)
                x, y = batch.data
                batch.submit(F.mse_loss(model(x), y))
        self.assertTrue(core.closed)
        core.vectors[1][:] = bytes(len(core.vectors[1]))
        self.assertEqual(model[0].bias.tolist(), [3.0] * 3)
        F.mse_loss(model(rows().tensors[0]), rows().tensors[1]).backward()
        optimizer.step()

    def test_stop(self):
        """SIGTERM ends the loop after the batch that is computed, and nobody is left listening for it."""
        model = mlp()
        core = Core([(TRAIN, [1, 2, 3, 4])] * 3)
        with self.worker(core, model) as worker:
            for batch in worker:
                x, y = batch.data
                if core.joined:
                    os.kill(os.getpid(), signal.SIGTERM)
                batch.submit(F.mse_loss(model(x), y))
            self.assertFalse(worker.over)
        self.assertEqual(len(core.gradients), 1)
        self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)

    def test_no_lane(self):
        """A worker that came too late for a lane leaves the module as it was."""
        model = mlp()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        self.run_loop(Core(), model)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def test_train(self):
        """The short form is this loop, with the measures that the target allows."""
        for target, loss_fn, sums in (
            (torch.rand(20, 2), F.mse_loss, {0, 2, 3, 4}),
            (torch.arange(20) % 2, F.cross_entropy, {0, 4, 9}),
        ):
            core = Core([(TRAIN, [1, 2, 3, 4])])
            with mock.patch("kelp._process.open_worker", return_value=core):
                model = kelp.torch.train(mlp(), loss_fn, TensorDataset(torch.rand(20, 4), target))
            self.assertEqual(model[0].bias.tolist(), [0.0] * 3)  # as in the vectors
            self.assertEqual({number for number, _ in core.sums}, sums)

    def test_no_job(self):
        with mock.patch("kelp._process.is_worker", return_value=False):
            with self.assertRaisesRegex(RuntimeError, "no place in a job: start the script with kelp run"):
                kelp.torch.Worker(mlp(), rows())
        with self.assertRaisesRegex(ValueError, "the job has no model.init"):
            self.worker(Core(model__init=""), mlp())


class Predict(Joined):
    def predict(self, predictions_of, core):
        model = mlp()
        batches = []
        with self.worker(core, model) as worker:
            for batch in worker:
                x, y = batch.data
                out = model(x)
                if batch.rehearsal:
                    batch.submit(F.mse_loss(out, y), predictions=out)
                else:
                    batches.append((batch.training, batch.predicting, batch.part, model.training, x.tolist()))
                    batch.submit(predictions=predictions_of(out))
        return batches

    def test_rows(self):
        for part, data in ("train", rows()), ("val", rows(5)):
            core = Core([(PREDICT, [2, 0, 1])], run__part=part)
            batches = self.predict(lambda out: out.double().reshape(3, 1, 2), core)
            self.assertEqual(batches, [(False, True, part, False, data.tensors[0][[2, 0, 1]].tolist())])
            self.assertEqual((core.predictions[0][1], len(core.predictions)), (2, 1))
            self.assertEqual(torch.tensor(core.predictions[0][0]).shape, (3, 2))
            self.assertEqual((core.sums, len(core.gradients)), ([], 1))

    def test_mistakes(self):
        for predictions_of, words in (
            (lambda out: None, "kelp predict needs predictions="),
            (lambda out: out[:2], r"predictions has shape \(2, 2\); its first dimension must be the batch's 3 samples"),
            (lambda out: out.sum(), r"predictions has shape \(\)"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                self.predict(predictions_of, Core([(PREDICT, [0, 1, 2])], run__part="val"))
        with self.assertRaisesRegex(TypeError, "predictions is a list"):
            self.predict(lambda out: out.tolist(), Core([(PREDICT, [0, 1, 2])], run__part="val"))


class Load(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "model.safetensors")

    def write(self, module, **changed):
        values = {name: value.numpy() for name, value in module.state_dict().items() if value.is_floating_point()}
        values.update(changed)
        kelp._describe._write_weights(self.path, {k: v for k, v in values.items() if v is not None})

    def test_module(self):
        """Parameters and buffers, from a file or from the folder that has it; tied ones are there once."""

        def module():
            made = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
            made[2].weight = made[0].weight
            return made

        trained = module()
        trained(torch.rand(8, 3))
        self.write(trained, **{"2.weight": None})
        for path in self.path, os.path.dirname(self.path):
            other = module().eval()
            weight = other[0].weight
            self.assertIs(kelp.torch.load(other, path), other)
            for name, value in trained.state_dict().items():
                if value.is_floating_point():
                    self.assertTrue(torch.equal(other.state_dict()[name], value), name)
            self.assertIs(other[0].weight, weight)
            self.assertFalse(other.training)

    def test_mistakes(self):
        model = mlp()
        before = model[0].weight.clone()
        for changed, words in (
            ({"2.bias": None}, "has no tensor 2.bias, which the module has"),
            ({"more": np.zeros(1, np.float32)}, "has a tensor more, which the module has not"),
            ({"2.bias": np.zeros(3, np.float32)}, r"tensor 2.bias has shape \[3\]; the module's has \[2\]"),
        ):
            self.write(mlp(), **changed)
            with self.assertRaisesRegex(ValueError, words):
                kelp.torch.load(model, self.path)
        with open(self.path, "wb") as file:
            file.write(b"no weights at all")
        with self.assertRaisesRegex(ValueError, "is not a safetensors file"):
            kelp.torch.load(model, self.path)
        self.write(mlp())
        os.truncate(self.path, os.path.getsize(self.path) - 4)
        with self.assertRaisesRegex(ValueError, "is cut off"):
            kelp.torch.load(model, self.path)
        os.remove(self.path)
        with mock.patch("shutil.which", return_value=None):
            with self.assertRaisesRegex(ValueError, "there is no program kelp on PATH"):
                kelp.torch.load(model, os.path.dirname(self.path))
        self.assertTrue(torch.equal(model[0].weight, before))


class Mistakes(Joined):
    def loop(self, body, model=None, core=None, **arguments):
        model = model or mlp()
        with self.worker(core or Core(), model, **arguments) as worker:
            for batch in worker:
                body(batch, model)

    def refuses(self, words, body, kind=Exception, **arguments):
        with self.assertRaisesRegex(kind, words) as caught:
            self.loop(body, **arguments)
        self.assertNotIn("\n", str(caught.exception))

    @staticmethod
    def loss(batch, model):
        return F.mse_loss(model(batch.data[0]), batch.data[1])

    def test_submit(self):
        def twice(batch, model):
            batch.submit(self.loss(batch, model))
            batch.submit(self.loss(batch, model))

        self.refuses(r"submit\(\) was called twice for one batch", twice, RuntimeError)
        self.refuses("a batch was not submitted", lambda batch, model: None, RuntimeError)
        self.refuses("loss is a float; it must be a tensor", lambda batch, model: batch.submit(0.5), TypeError)
        self.refuses(
            r"loss has shape \(10, 2\).*loss.mean\(\)",
            lambda batch, model: batch.submit((model(batch.data[0]) - batch.data[1]).square()),
            core=Core(train__batch_size="20"),
        )
        self.refuses(
            "does not depend on a parameter", lambda batch, model: batch.submit(self.loss(batch, model).detach())
        )
        self.refuses(
            "sum_of has shape",
            lambda batch, model: batch.submit(self.loss(batch, model), sum_of=batch.data[0]),
        )
        self.refuses(
            "there is no sum 'hit'; the sums are hits, squared,.* those given to Worker.sums=",
            lambda batch, model: batch.submit(self.loss(batch, model), hit=1),
            core=Core(model__sums="[hits=min]"),
        )

    def test_steps(self):
        """What the job does is left out of the loop."""
        for name, words in (("step", r"optimizer.step\(\): shards apply"), ("zero_grad", "begins at zero")):
            model = mlp()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.refuses(words, lambda batch, model: getattr(optimizer, name)(), model=model, optimizer=optimizer)

        def replaced(batch, model):
            loss = self.loss(batch, model)
            for parameter in model.parameters():
                parameter.grad = None
            batch.submit(loss)

        self.refuses("0.weight: its grad was replaced", replaced)

        def changed(batch, model):
            with torch.no_grad():
                model[0].bias.add_(1)
            batch.submit(self.loss(batch, model))

        self.refuses("0.bias was changed in place", changed)

        def clips(batch, model):
            loss = self.loss(batch, model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            batch.submit(loss)

        def zeroes(batch, model):
            loss = self.loss(batch, model)
            model.zero_grad(set_to_none=False)
            batch.submit(loss)

        # The second backward would raise an exception of torch, or double the gradient.
        def backward(batch, model, retain=False):
            loss = self.loss(batch, model)
            loss.backward(retain_graph=retain)
            batch.submit(loss)

        for body in (clips, zeroes, backward, functools.partial(backward, retain=True)):
            self.refuses("0.weight: its grad was changed before.*train.clip_norm", body)

    def test_break(self):
        for after, ends in ((0, False), (3, False), (3, True)):  # a batch of the rehearsal, or one of the job
            with self.assertRaisesRegex(RuntimeError, "leave out break.*train.patience"):
                with self.worker(Core([(TRAIN, [1, 2, 3, 4])]), model := mlp()) as worker:
                    for number, batch in enumerate(worker):
                        batch.submit(self.loss(batch, model))
                        if number == after:
                            if ends:
                                sys.exit(0)
                            break

    def test_second(self):
        with mock.patch("kelp._kelp.Worker"), mock.patch("kelp._process._opened", False):
            kelp._process.open_worker()
            with self.assertRaisesRegex(RuntimeError, "a second Worker in one script"):
                self.worker(Core(), mlp())

    def test_sum(self):
        """The mean over a batch stays when each of its samples is there twice, whatever else the batch depends on."""
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)
                self.rest = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))

            def forward(self, x):
                return self.rest(self.rnn(x[:, None])[0][:, -1])

        def submits(reduction, **errors):
            def body(batch, model):
                out = model(batch.data[0])
                error = (out.detach() - batch.data[1]).square()
                loss = F.mse_loss(out, batch.data[1], reduction=reduction)
                batch.submit(loss, **{name: getattr(error, how)() for name, how in errors.items()})

            return body

        sizes = {"train__batch_size": "16", "train__accumulate": "1"}  # pieces of 8 and 2 samples
        for model in (mlp, Mixed):
            for settings in (sizes, {**sizes, "train__drop_last": "true"}):
                self.loop(submits("mean", squared="sum"), model=model(), core=Core(**settings))
        self.assertEqual([part.dropout for part in model().modules() if isinstance(part, nn.LSTM)], [0.5])
        drops = {**sizes, "train__drop_last": "true"}
        for model in (mlp, Mixed):
            self.refuses("the loss is a sum over the batch.*batch.samples", submits("sum"), ValueError,
                         model=model(), core=Core(**drops))  # fmt: skip
            self.refuses("squared is a mean over the batch.*sum over all", submits("mean", squared="mean"), ValueError,
                         model=model(), core=Core(**drops))  # fmt: skip
        def tells_apart(batch, model):  # each sample from the others of its batch
            out = model(batch.data[0])
            batch.submit(F.cross_entropy(1e-6 * out @ out.T, torch.arange(batch.samples)))

        for size in ("8", "14", "10"):  # the smallest piece is one of 4, 6 and 10 samples
            self.loop(tells_apart, core=Core(train__batch_size=size, cluster__lanes="1"))
        # Pieces that are all of one size may be needed: nothing is asked of the script then.
        self.loop(submits("sum"), core=Core(train__batch_size="10", cluster__lanes="1"), val=None)

    def test_correct(self):
        for value, words in (
            (0.5, "correct is 0.5; it must be how many of the 10 are right"),
            (11, "correct is 11; .* of the 10"),
            (float("nan"), "correct is nan"),
            (-1, "correct is -1"),
        ):
            self.refuses(
                words, lambda batch, model: batch.submit(self.loss(batch, model), correct=value), ValueError,
                core=Core(train__batch_size="20"),
            )  # fmt: skip
        # What was a mean times the number of samples is whole but for the last bits.
        share = torch.tensor(0.6)
        core = Core(train__batch_size="20")
        self.loop(lambda batch, model: batch.submit(self.loss(batch, model), correct=share * batch.samples), core=core)
        self.loop(lambda batch, model: batch.submit(self.loss(batch, model), correct=99, elements=100))

    def test_scaler(self):
        scaler = torch.cuda.amp.GradScaler(enabled=False)
        self.refuses(
            "GradScaler: gradients of several workers.*torch.bfloat16",
            lambda batch, model: batch.submit(scaler.scale(self.loss(batch, model))),
        )
        self.assertEqual(scaler.scale(torch.tensor(2.0)), 2.0)

    def test_history(self):
        """What was computed before may not matter."""
        calls = []

        def counts(batch, model):
            calls.append(0)
            batch.submit(self.loss(batch, model) * len(calls))

        self.refuses("0.weight: the same batch gave another gradient the 2nd time", counts, ValueError)
        draws = torch.Generator().manual_seed(3)
        self.refuses(
            "another gradient",
            lambda batch, model: batch.submit(self.loss(batch, model) * torch.rand((), generator=draws)),
        )
        self.loop(lambda batch, model: batch.submit(self.loss(batch, model) * torch.rand(())))

    def test_batch_norm(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        submit = lambda batch, model: batch.submit(self.loss(batch, model))  # noqa: E731
        self.refuses(
            r"1 \(BatchNorm1d\) norms a single value where a step has a piece of 1 samples", submit,
            model=model, core=Core(cluster__lanes="8"),
        )  # fmt: skip
        self.loop(submit, model=model)

    def test_modules(self):
        """Each is one line that says what would be right."""
        scripted = nn.Sequential(torch.jit.script(nn.Linear(4, 2)))
        for model, words in (
            (scripted, "0 .*ScriptModule.*as it was before torch.jit"),
            (nn.Embedding(3, 2, sparse=True), "sparse gradients.*sparse=False"),
            (mlp().double(), "parameter 0.weight is torch.float64.*leave the module in float32"),
            (mlp().bfloat16(), "is torch.bfloat16.*torch.autocast"),
            (nn.BatchNorm1d(4, momentum=None), "momentum=None"),
            (mlp().requires_grad_(False), "nothing to train"),
            (nn.LazyLinear(3), "has no shape yet"),
            (nn.DataParallel(mlp()), "give the module that is inside"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words) as caught:
                self.worker(Core(), model)
            self.assertNotIn("\n", str(caught.exception))


class Describing(unittest.TestCase):
    """A script that describes its job writes keys and weights, and ends."""

    def describe(self, script):
        with tempfile.TemporaryDirectory() as folder:
            with mock.patch.dict(os.environ, KELP_DESCRIBE=folder), self.assertRaises(SystemExit) as ended:
                script()
            self.assertEqual(ended.exception.code, 0)
            with open(os.path.join(folder, "job.yaml"), encoding="utf-8") as file:
                job = file.read()
            path = os.path.join(folder, "init.safetensors")
            if not os.path.exists(path):
                return job, None
            with open(path, "rb") as file:
                data = file.read()
        length = int.from_bytes(data[:8], "little")
        self.assertEqual(length % 8, 0)
        tensors = {}
        for name, entry in json.loads(data[8 : 8 + length]).items():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], entry["dtype"].replace("F32", "<f4")).reshape(entry["shape"])
        return job, tensors

    def test_torch(self):
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2).requires_grad_(False))

        def script():
            kelp.torch.Worker(
                model, rows(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1), epochs=3, batch_size=64, lanes=2,
                sums=["hits", "far=min"],
                settings={"checkpoint.every": "30s", "train.clip_norm": 1.5, "name": "a: b", "model.hidden": [1, 2]},
            )  # fmt: skip

        job, tensors = self.describe(script)
        for line in (
            'name: "a: b"\n',
            "train:\n  optimizer: sgd\n  lr: 0.1\n",
            "  epochs: 3\n  batch_size: 64\n  clip_norm: 1.5\n",
            "cluster:\n  lanes: 2\n",
            "checkpoint:\n  every: 30s\n",
            "model:\n  sums: [hits, far=min]\n  hidden: [1, 2]\n  init: init.safetensors\n",
        ):
            self.assertIn(line, job)
        state = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        self.assertEqual(set(tensors), set(state))
        for name, value in state.items():
            self.assertEqual(tensors[name].tolist(), value.tolist(), name)

    def test_numpy(self):
        def script(given):
            with kelp.Worker(train=9, fingerprint=1, settings={"train.epochs": 2, "seed": 5}) as worker:
                self.assertEqual(worker.setting("train.epochs"), "2")
                with self.assertRaisesRegex(ValueError, "'train.lr'.*no job yet"):
                    worker.setting("train.lr")
                worker.tensor("w", given)
                for _ in worker:
                    self.fail("there are no batches yet")

        self.assertEqual(self.describe(lambda: script(kelp.constant(3))), ("seed: 5\ntrain:\n  epochs: 2\n", None))
        job, tensors = self.describe(lambda: script(np.arange(3, dtype=np.float64)))
        self.assertIn("model:\n  init: init.safetensors\n", job)
        self.assertEqual(tensors["w"].tolist(), [0, 1, 2])

    def test_mistakes(self):
        """They are refused before there is a job."""
        model = mlp()
        with mock.patch.dict(os.environ, KELP_DESCRIBE="/nowhere"):
            with self.assertRaisesRegex(ValueError, "sparse gradients"):
                kelp.torch.Worker(nn.Embedding(3, 2, sparse=True), rows())
            with self.assertRaisesRegex(TypeError, "train is a DataLoader; give its dataset"):
                kelp.torch.Worker(model, DataLoader(rows()))
            with self.assertRaisesRegex(ValueError, "Kelp has no optimizer"):
                kelp.torch.Worker(model, rows(), optimizer=torch.optim.LBFGS(model.parameters()))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
            with self.assertRaisesRegex(ValueError, "CosineAnnealingLR"):
                kelp.torch.Worker(model, rows(), optimizer=optimizer, scheduler=scheduler, epochs=5)


class Numpy(Joined):
    def worker(self, core, **arguments):
        with mock.patch("kelp._process.open_worker", return_value=core):
            return kelp.Worker(train=20, fingerprint=1, **arguments)

    def test_loop(self):
        core = Core([(TRAIN, [1, 2]), (TRAIN, [3])])
        with self.worker(core) as worker:
            worker.tensor("w", kelp.uniform((2, 3), 0.5))
            for batch in worker:
                self.assertEqual(batch.gradient["w"].tolist(), np.zeros((2, 3)).tolist())
                batch.gradient["w"] += len(batch.indices)
                batch.submit(1.5, correct=1)
        self.assertEqual([np.frombuffer(g, np.float32)[0] for g in core.gradients], [2, 1])
        self.assertEqual(core.sums[:2], [(0, 1.5), (9, 1)])
        self.assertEqual(core.tensors[0][:3], ("w", (2, 3), 1))

    def test_mistakes(self):
        def loop(*calls):
            with self.worker(Core([(TRAIN, [1])])) as worker:
                worker.tensor("w", kelp.constant(3))
                for batch in worker:
                    for sums in calls:
                        batch.submit(**{"loss": 1.0, **sums})

        with self.assertRaisesRegex(RuntimeError, "called twice"):
            loop({}, {})
        with self.assertRaisesRegex(RuntimeError, "was not submitted"):
            loop()
        with self.assertRaisesRegex(TypeError, "loss is missing"):
            loop({"loss": None})
        with self.assertRaisesRegex(ValueError, "there is no sum 'right'; the sums are squared"):
            loop({"right": 1})
        with self.assertRaisesRegex(ValueError, "'w' begins with given values, but the job has no model.init"):
            self.worker(Core(model__init="")).tensor("w", np.zeros(3, np.float32))


if __name__ == "__main__":
    unittest.main()
