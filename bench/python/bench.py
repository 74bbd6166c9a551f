#!/usr/bin/env python3
"""Measures Kelp's package for PyTorch: what it adds to a lane, and steps per second compared with gloo.

    bench.py [--rounds N] [--loss KILLS]

With --loss, only how long training stands still when one of two workers of the taxi script is killed. From the
kill until a second after the next worker of its name has its first lane, this is the longest time from one step's first
lane to that of the next.

`kelp` must be in PATH, and the package kelp importable. KELP_DATA is the folder with the taxi trips, as for
examples/pytorch. Rounds are interleaved; medians are printed, with the smallest and the largest value.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
DATA = os.environ.get("KELP_DATA") or str(HERE.parents[2] / "shared/data")
TAXI = HERE.parents[1] / "examples/pytorch/taxi_fare_kelp.py"
EPOCHS = 3
PATIENCE_S = 60  # longer than anything takes if all is well


def kelp_run(folder, options, *script, **environment):
    command = ["kelp", "run", "--run", str(folder / "run"), "--no-plots", *options, *map(str, script)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, env={**os.environ, **environment})
    return json.loads((folder / "run/result.json").read_text())


def lanes(data):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        kelp_run(folder, ["--workers", "1"], HERE / "lane.py", data, BENCH_LANES=str(folder / "lanes"))
        lines = (folder / "lanes").read_text().splitlines()
    return {part: float(value) for part, value in (line.split() for line in lines)}


def taxi_by_kelp():
    with tempfile.TemporaryDirectory() as name:
        options = ["--workers", "2", "--set", f"train.epochs={EPOCHS}", "--set", "train.evaluate=false"]
        return float(kelp_run(pathlib.Path(name), options, TAXI, DATA)["steps_per_s"])


def taxi_by_gloo(port, *options):
    command = [sys.executable, str(HERE / "taxi_ddp.py"), str(EPOCHS), str(port), DATA, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


class Steps:
    """The notes of loss.py: when each step had its first lane, and since when each worker's process has lanes."""

    def __init__(self, path):
        path.touch()
        self._file = path.open()
        self._rest = ""
        self.begins = []
        self.workers = {}

    def read(self):
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            at, step, worker, process = line.split()
            if not self.begins or int(step) > self.begins[-1][1]:
                self.begins.append((float(at), int(step)))
            if self.workers.get(worker, (0, 0))[0] != int(process):
                self.workers[worker] = (int(process), float(at))

    def watch(self, run, ready):
        """Wait until two workers have had lanes for a second and ready() is true."""
        end = time.monotonic() + PATIENCE_S
        while not (len(self.workers) == 2 and ready() and time.monotonic() > 1 + max(self.since())):
            if run.poll() is not None:
                sys.exit(f"kelp run has ended, with exit status {run.returncode}")
            if time.monotonic() > end:
                sys.exit(f"no two workers train after {PATIENCE_S} s")
            time.sleep(0.01)
            self.read()

    def since(self):
        return [at for _, at in self.workers.values()]

    def longest(self, begin):
        """The longest time so far between the beginnings of two steps, the second of which begins after ``begin``."""
        times = [at for at, _ in self.begins] + [time.monotonic()]
        return max(after - before for before, after in zip(times, times[1:]) if after > begin)


def losses(kills):
    """Seconds without a step: in two seconds without a kill, and at each kill."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        steps = Steps(folder / "steps")
        settings = ["train.epochs=10000", "train.evaluate=false", "failure.max_failures=-1"]
        command = ["kelp", "run", "--run", str(folder / "run"), "--no-plots", "--workers", "2"]
        command += [word for setting in settings for word in ("--set", setting)]
        command += [str(HERE / "loss.py"), DATA]
        environment = {**os.environ, "BENCH_STEPS": str(folder / "steps")}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder, env=environment) as run:
            try:
                steps.watch(run, lambda: True)
                begin = time.monotonic()
                steps.watch(run, lambda: time.monotonic() > begin + 2)
                quiet = steps.longest(begin)
                gaps = []
                for number in range(kills):
                    worker = f"worker-{number % 2}"
                    process = steps.workers[worker][0]
                    begin = time.monotonic()
                    os.kill(process, signal.SIGKILL)
                    steps.watch(run, lambda: steps.workers[worker][0] != process)
                    gaps.append(steps.longest(begin))
            finally:
                run.send_signal(signal.SIGINT)
    return quiet, gaps


def show_losses(kills):
    quiet, gaps = losses(kills)
    print("taxi fare, 64 samples a step, 2 workers, 1 shard: the longest time without a step")
    print(f"  nobody is killed                           {1000 * quiet:9.1f} ms")
    show("  a worker is killed", [1000 * gap for gap in gaps], "ms", "kills")


def show(name, values, unit, times="rounds"):
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f"{name:<44} {middle:9.1f} {unit}  ({low:.1f} to {high:.1f}, {len(values)} {times})", flush=True)
    return middle


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loss", type=int, metavar="KILLS", help="loss of a worker alone, so many times")
    options = parser.parse_args()
    if options.loss:
        show_losses(options.loss)
        return
    rounds = options.rounds
    measured = {"tensors": [], "samples": [], "kelp": [], "loader": [], "raw": []}
    for number in range(rounds):
        measured["tensors"].append(lanes("tensors"))
        measured["samples"].append(lanes("samples"))
        measured["kelp"].append(taxi_by_kelp())
        measured["loader"].append(taxi_by_gloo(29600 + 2 * number))
        measured["raw"].append(taxi_by_gloo(29601 + 2 * number, "--raw"))
    for data, title in (("tensors", "a TensorDataset"), ("samples", "samples one by one")):
        print(f"a lane of 8 samples, MLP 96-128-128-96, one worker, {title}")
        for part in measured[data][0]:
            show(f"  {part}", [lane[part] for lane in measured[data]], "us")
    print("taxi fare, 64 samples a step, two processes")
    kelp = show("  Kelp, 2 workers, 1 shard", measured["kelp"], "steps/s")
    loader = show("  DDP over gloo, DataLoader (the same script)", measured["loader"], "steps/s")
    raw = show("  DDP over gloo, tensors in memory", measured["raw"], "steps/s")
    print(f"Kelp / gloo: {kelp / loader:.2f} with the DataLoader, {kelp / raw:.2f} with tensors in memory")


if __name__ == "__main__":
    main()
