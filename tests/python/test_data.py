"""kelp.torch._data: the same batches wherever they are computed, and ends of data processes."""

import collections
import multiprocessing.forkserver
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from kelp.torch import _data
from kelp.torch._bits import mix
from kelp.torch._data import Loader

Pair = collections.namedtuple("Pair", "picture label")


class Augmented(Dataset):
    """Draws from all three generators, a different number of times for each sample."""

    def __init__(self, length=100):
        self.pictures = torch.arange(length * 12, dtype=torch.float32).reshape(length, 3, 2, 2)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        noise = [random.random() for _ in range(1 + index % 3)]
        scale = numpy.random.rand(1 + index % 2).sum()
        return Pair(self.pictures[index] * scale + torch.rand(3, 1, 1), sum(noise))


def mix_up(samples):
    """A collate_fn that draws, too."""
    pictures = torch.stack([sample.picture for sample in samples])
    return {"x": pictures[torch.randperm(len(samples))], "y": [sample.label for sample in samples], "n": len(samples)}


class Where(Dataset):
    """Tells which process computed a sample, and with how many threads."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index, os.getpid(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()


class NotPicklable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Fails(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 3:
            raise ValueError(f"the file of sample {index} is damaged")
        if index == 4:
            raise NotPicklable("this", "that")
        return torch.tensor(index)


class Blocks(Dataset):
    """Sample 0 says that it has begun, and then waits for something that nobody writes."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 0:
            with open(os.path.join(self.folder, "begun"), "w", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")
            with open(os.path.join(self.folder, "go on"), encoding="ascii") as file:
                file.read()
        return torch.tensor(index)


def as_is(samples):
    return samples


def strange(samples):
    """Tensors that are not simply contiguous float32."""
    pictures = torch.stack(samples)
    return [
        pictures.to(memory_format=torch.channels_last),
        pictures[:1].expand(4, -1, -1, -1),
        pictures[:, 1],
        pictures.transpose(0, 3),
        pictures.to(torch.bfloat16),
        pictures > 5,
        pictures.sum(),
        pictures[:0],
        pictures.to(torch.complex64),
        pictures.numpy(),
        numpy.float64(2.5),
        {"text": ["a", b"b", None]},
        torch.eye(3).to_sparse(),
    ]


def wait_until_ready(loader):
    """All data processes have begun."""
    while not all(process.ready for process in loader._processes):
        loader._poll.poll()
        loader._turn()


def pieces(count, size=8, length=100, seed=1):
    numbers = numpy.random.default_rng(seed)
    return [(numbers.integers(0, length, size), mix(seed, at)) for at in range(count)]


def same(one, other):
    """The same types, bits and strides."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.layout is not torch.strided:
            return torch.equal(one.to_dense(), other.to_dense())
        alike = one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        return alike and torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return one == other


def left_of(session):
    """Processes of a session that are there."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(f"{folder.name} {(folder / 'cmdline').read_bytes()!r}")
    return found


class Inline(unittest.TestCase):
    def test_same_each_time(self):
        """A function of sample and seed, whatever was drawn before."""
        loader = Loader(Augmented(), collate_fn=mix_up)
        indices, seed = pieces(1)[0]
        first = loader.fetch("train", indices, seed)
        torch.manual_seed(1)
        random.seed(1)
        self.assertTrue(same(first, loader.fetch("train", torch.as_tensor(indices), seed)))
        self.assertTrue(same(first, loader.fetch("train", indices.tolist(), seed)))
        self.assertFalse(same(first, loader.fetch("train", indices, seed + 1)))

    def test_tensors(self):
        """Rows of a TensorDataset are those of default_collate, also through a Subset."""
        dataset = TensorDataset(torch.randn(20, 3), torch.arange(20))
        subset = Subset(dataset, [3, 1, 4, 15, 9])
        loader = Loader(dataset, subset)
        self.assertTrue(same(loader.fetch("train", [5, 2], 0), default_collate([dataset[5], dataset[2]])))
        self.assertTrue(same(loader.fetch("val", [4, 0], 0), default_collate([subset[4], subset[0]])))

    def test_tensors_need_no_process(self):
        loader = Loader(TensorDataset(torch.randn(20, 3)), workers=2)
        loader.expect("train", [([1], 2)])
        self.assertEqual(loader._processes, [])

    def test_lengths(self):
        self.assertEqual(Loader(Augmented(7), test=Augmented(3)).lengths(), (7, 0, 3))

    def test_refused(self):
        class Endless(IterableDataset):
            def __iter__(self):
                return iter(())

        cases = [
            (TypeError, "train is None", (None,), {}),
            (TypeError, "val is an IterableDataset; it needs samples by number", (Augmented(), Endless()), {}),
            (TypeError, "train is a DataLoader; give its dataset", (DataLoader(Augmented()),), {}),
            (TypeError, "train is a int; it needs __getitem__ and __len__", (3,), {}),
            (ValueError, "train has no samples", (Augmented(0),), {}),
            (ValueError, "workers=-1; the number of data processes", (Augmented(),), {"workers": -1}),
            (TypeError, "collate_fn is a int", (Augmented(),), {"collate_fn": 3}),
        ]
        for kind, line, arguments, settings in cases:
            with self.subTest(line), self.assertRaisesRegex(kind, line):
                Loader(*arguments, **settings)


class Fingerprint(unittest.TestCase):
    def test_content(self):
        """Another length, another sample, another part or another order is another fingerprint."""
        x = torch.arange(40.0).reshape(20, 2)
        y = x.clone()
        y[13, 1] += 1
        loaders = [
            Loader(TensorDataset(x)),
            Loader(TensorDataset(y)),
            Loader(TensorDataset(x[:19])),
            Loader(TensorDataset(x), TensorDataset(x)),
            Loader(TensorDataset(x), test=TensorDataset(x)),
            Loader(Subset(TensorDataset(x), range(20))),
            Loader(Subset(TensorDataset(x), [1, 0, *range(2, 20)])),
            Loader(Augmented(20)),
            Loader(Augmented(21)),
            Loader(TensorDataset(x.double())),
            Loader(Where()),
        ]
        self.assertEqual(len({loader.fingerprint() for loader in loaders}), len(loaders))
        self.assertEqual(Loader(TensorDataset(x)).fingerprint(), loaders[0].fingerprint())

    def test_random(self):
        """Random augmentation is drawn alike, and the script's generators stay as they are."""
        torch.manual_seed(3)
        random.seed(3)
        numpy.random.seed(3)
        first = Loader(Augmented()).fingerprint()
        drawn = torch.rand(1).item(), random.random(), numpy.random.rand()
        torch.manual_seed(3)
        random.seed(3)
        numpy.random.seed(3)
        self.assertEqual(drawn, (torch.rand(1).item(), random.random(), numpy.random.rand()))
        self.assertEqual(first, Loader(Augmented()).fingerprint())


class OneForkServer(_data._ForkServer):
    """The same for all loaders here: each of its own imports torch."""

    def __enter__(self):
        multiprocessing.forkserver.ensure_running()
        return os.dup(self._server()._forkserver_alive_fd)

    def __exit__(self, *exception):
        pass


@unittest.mock.patch.object(_data, "_ForkServer", OneForkServer)
class Processes(unittest.TestCase):
    def loader(self, *arguments, **settings):
        loader = Loader(*arguments, **settings)
        self.addCleanup(loader.close)
        return loader

    def test_same_bits(self):
        """For any number of processes, with and without prediction, every batch is the one computed here."""
        for collate in (mix_up, as_is, None):
            inline = Loader(Augmented(), Augmented(50), collate_fn=collate)
            todo = pieces(40)
            wanted = [inline.fetch("train", *piece) for piece in todo]
            for count in (1, 2, 3):
                loader = self.loader(Augmented(), Augmented(50), collate_fn=collate, workers=count)
                wait_until_ready(loader)
                for at, piece in enumerate(todo):
                    if at % 5 != 4:
                        loader.expect("train", todo[at : at + 6])
                    with self.subTest(collate=collate, workers=count, piece=at):
                        self.assertTrue(same(loader.fetch("train", *piece), wanted[at]))
                loader.close()

    def test_strange_tensors(self):
        """Types, strides and what is no tensor arrive as they were."""
        pictures = [torch.arange(12.0).reshape(3, 2, 2) * number for number in range(8)]
        inline, loader = Loader(pictures, collate_fn=strange), self.loader(pictures, collate_fn=strange, workers=1)
        wait_until_ready(loader)
        loader.expect("train", [([1, 2, 3, 5], 9)])
        there, here = loader.fetch("train", [1, 2, 3, 5], 9), inline.fetch("train", [1, 2, 3, 5], 9)
        for at, (one, other) in enumerate(zip(there, here)):
            with self.subTest(at):
                self.assertTrue(same(one, other))
        there[0].add_(1)  # and can be written to

    def test_predicted(self):
        """What was named comes from a process, what was not is computed here, and both are right."""
        loader = self.loader(Where(), Where(), collate_fn=as_is, workers=1)
        wait_until_ready(loader)
        loader.expect("train", [([1, 2], 5), ([3], 6)])
        loader.expect("val", [([8], 7)])
        there = loader.fetch("train", [1, 2], 5)
        self.assertNotEqual(there[0][1], os.getpid())
        self.assertEqual([sample[0] for sample in there], [1, 2])
        self.assertEqual(loader.fetch("train", [9], 6)[0][:2], (9, os.getpid()))
        self.assertEqual(loader.fetch("train", [3], 1)[0][:2], (3, os.getpid()))
        loader.expect("train", [([4], 5)])  # in the place of ([3], 6), which may be under way
        loader._poll.poll()
        loader._turn()
        self.assertNotEqual(loader.fetch("val", [8], 7)[0][1], os.getpid())
        self.assertEqual(loader.fetch("val", [8], 7)[0][1], os.getpid())  # it was fetched once
        self.assertEqual(set(loader._expected), {("train", 5, numpy.array([4]).tobytes())})

    def test_settings_go_along(self):
        """Threads and deterministic algorithms are those of the worker."""
        loader = self.loader(Where(), collate_fn=as_is, workers=1)
        wait_until_ready(loader)
        threads = torch.get_num_threads()
        try:
            for count in (2, 1):
                torch.set_num_threads(count)
                torch.use_deterministic_algorithms(count == 2)
                loader.expect("train", [([count], 5)])
                self.assertEqual(loader.fetch("train", [count], 5)[0][2:], (count, count == 2))
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(False)

    def test_large(self):
        """Questions and answers over what a socket holds."""
        loader = self.loader([torch.zeros(1)] * 1000, workers=1)
        wait_until_ready(loader)
        todo = [(numpy.arange(200000) % 1000, number) for number in range(3)]
        loader.expect("train", todo)
        for indices, seed in todo:
            self.assertEqual(len(loader.fetch("train", indices, seed)), 200000)

    def test_exceptions(self):
        """An exception arrives as it is, with the other process's traceback; an unasked one does not."""
        loader = self.loader(Fails(), collate_fn=as_is, workers=1)
        wait_until_ready(loader)
        loader.expect("train", [([3], 1)])
        loader._poll.poll()
        loader.expect("train", [([2, 3], 1)])
        self.assertEqual(loader.fetch("train", [5], 0), [torch.tensor(5)])
        with self.assertRaisesRegex(ValueError, "the file of sample 3 is damaged") as caught:
            loader.fetch("train", [2, 3], 1)
        text = str(caught.exception.__cause__)
        self.assertIn("data process 0 (pid ", text)
        self.assertIn("which fetches 2 samples of train", text)
        self.assertIn("in __getitem__", text)
        loader.expect("train", [([4], 1)])
        with self.assertRaisesRegex(RuntimeError, "NotPicklable: this and that"):
            loader.fetch("train", [4], 1)
        loader.expect("train", [([7], 1)])
        self.assertEqual(loader.fetch("train", [7], 1), [torch.tensor(7)])

    def test_not_picklable(self):
        with self.assertRaisesRegex(ValueError, "^workers= needs datasets and a collate_fn that can be pickled: .*"):
            Loader(Augmented(), collate_fn=lambda samples: samples, workers=1)

    def test_unreadable(self):
        """A dataset that a data process cannot rebuild: its reason is the worker's."""
        with tempfile.TemporaryDirectory() as folder:
            sys.path.insert(0, folder)
            pathlib.Path(folder, "gone.py").write_text("class Data(list):\n    pass\n")
            import gone

            data = gone.Data([1, 2])
            pathlib.Path(folder, "gone.py").unlink()
            loader = self.loader(data, workers=1)
            sys.path.remove(folder)
            with self.assertRaisesRegex(ModuleNotFoundError, "gone") as caught:
                wait_until_ready(loader)
            self.assertIn("which reads the datasets", str(caught.exception.__cause__))

    def test_killed(self):
        """A killed data process is one line, whether it had work or not, and takes the others with it."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(os.path.join(folder, "begun"))
            os.mkfifo(os.path.join(folder, "go on"))
            for busy in (False, True):
                loader = self.loader(Blocks(folder), workers=2)
                wait_until_ready(loader)
                processes = [process.process for process in loader._processes]
                pids = [process.pid for process in processes]
                line = rf"^data process 0 \(pid {pids[0]}\) was killed by SIGKILL"
                if busy:
                    loader.expect("train", [([0, 1, 2], 1)])
                    begun = pathlib.Path(folder, "begun").read_text()
                    self.assertEqual(int(begun), pids[0])
                    line += " while it fetched 3 samples of train$"
                os.kill(pids[0], signal.SIGKILL)
                with self.assertRaisesRegex(RuntimeError, line):
                    if busy:
                        loader.fetch("train", [0, 1, 2], 1)
                    else:
                        loader._poll.poll()
                        loader.fetch("train", [5], 1)
                for pid in pids:
                    self.assertFalse(os.path.exists(f"/proc/{pid}"))

    @unittest.mock.patch.object(_data, "_ForkServer", _data._ForkServer)
    def test_close(self):
        """Processes in the middle of a sample end too; files are closed."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(os.path.join(folder, "begun"))
            os.mkfifo(os.path.join(folder, "go on"))
            Loader(Where(), workers=1).close()  # what multiprocessing keeps open
            before = len(os.listdir("/proc/self/fd"))
            loader = Loader(Blocks(folder), workers=2)
            wait_until_ready(loader)
            loader.expect("train", [([0], 1)])
            pid = int(pathlib.Path(folder, "begun").read_text())
            loader.close()
            loader.close()
            self.assertFalse(os.path.exists(f"/proc/{pid}"))
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)


class Scripts(unittest.TestCase):
    """Whole programs: nothing hangs, and nothing is left."""

    def setUp(self):
        """SIGINT is ignored in a job of the shell in the background, and programs would inherit that."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

    def start(self, work, **environment):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.mkfifo(os.path.join(folder.name, "begun"))
        os.mkfifo(os.path.join(folder.name, "go on"))
        script = pathlib.Path(folder.name, "script.py")
        imports = "from kelp.torch._data import Loader\nfrom test_data import Blocks, Fails, wait_until_ready\n"
        script.write_text(imports + work)
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            cwd=folder.name,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(process.stderr.close)
        return process, pathlib.Path(folder.name)

    def nothing_left(self, process):
        deadline = time.monotonic() + 20
        while left_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)  # nothing tells when another's children have gone
        self.assertEqual(left_of(process.pid), [])

    WORK = textwrap.dedent(
        """
        if __name__ == "__main__":
            loader = Loader(Blocks("."), workers=2)
            wait_until_ready(loader)
            loader.expect("train", [([0], 1), ([1], 1)])
            loader.fetch("train", [0], 1)
        """
    )

    def test_worker_killed(self):
        """Data processes end with a worker that is killed, in the middle of a sample."""
        process, folder = self.start(self.WORK)
        pathlib.Path(folder, "begun").read_text()
        process.kill()
        process.wait()
        self.nothing_left(process)
        self.assertEqual(process.stderr.read(), "")

    def test_interrupt(self):
        """Ctrl-C, which all processes get: the worker's KeyboardInterrupt, and no other line."""
        process, folder = self.start(self.WORK)
        pathlib.Path(folder, "begun").read_text()
        os.killpg(process.pid, signal.SIGINT)
        error = process.stderr.read()
        self.assertEqual(process.wait(), -signal.SIGINT)
        self.assertEqual(error.count("Traceback"), 1, error)
        self.assertTrue(error.endswith("KeyboardInterrupt\n"), error)
        self.nothing_left(process)

    def test_exception_in_script(self):
        """A script that ends by an exception ends its data processes."""
        process, _ = self.start(
            self.WORK.replace('loader.fetch("train", [0], 1)', 'open("begun").read(); raise ValueError("no")')
        )
        error = process.stderr.read()
        self.assertEqual(process.wait(), 1)
        self.assertTrue(error.endswith("ValueError: no\n"), error)
        self.nothing_left(process)

    def test_exception_in_process(self):
        """A worker shows the traceback of the data process, and last one line with the script's own line."""
        process, _ = self.start(self.WORK.replace('Blocks(".")', "Fails()").replace("[0], 1", "[3], 1"), KELP_JOB="job")
        error = process.stderr.read()
        self.assertEqual(process.wait(), 2)
        self.assertIn("which fetches 1 sample of train:", error)
        self.assertIn("in __getitem__", error)
        self.assertRegex(error.splitlines()[-1], r"^script\.py:\d+: ValueError: the file of sample 3 is damaged$")
        self.nothing_left(process)

    def test_killed_process(self):
        """Of a killed data process there is one line, and the worker may be started again."""
        work = self.WORK + '    import os, signal\n    os.kill(int(open("begun").read()), signal.SIGKILL)\n'
        work = work.replace('    loader.fetch("train", [0], 1)\n', "") + '    loader.fetch("train", [0], 1)\n'
        process, _ = self.start(work, KELP_JOB="job")
        error = process.stderr.read()
        self.assertEqual(process.wait(), 75)
        line = r"^script\.py:\d+: data process 0 .* was killed by SIGKILL while it fetched 1 sample of train"
        self.assertRegex(error, line)
        self.assertEqual(error.count("\n"), 1, error)
        self.nothing_left(process)

    def test_without_guard(self):
        """A script that a data process cannot import without starting all again is told so."""
        process, _ = self.start('loader = Loader(Blocks("."), workers=1)\nwait_until_ready(loader)\n')
        error = process.stderr.read()
        self.assertEqual(process.wait(), 1)
        self.assertEqual(error.count("Traceback"), 1, error)
        line = r"^RuntimeError: data process 0 \(pid \d+\) has run the script again: .* if __name__ == .__main__.:$"
        self.assertRegex(error.splitlines()[-1], line)
        self.nothing_left(process)


if __name__ == "__main__":
    unittest.main()
