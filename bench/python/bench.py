#!/usr/bin/env python3
"""Kelp's package for PyTorch, in numbers: what it adds to a lane, and steps per second beside gloo.

    bench.py [--rounds N]

`kelp` stands in PATH, and the package kelp can be imported. The taxi trips are where KELP_DATA says, as for
examples/pytorch. Rounds are interleaved; medians are printed, with the smallest and the largest value.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DATA = os.environ.get("KELP_DATA") or str(HERE.parents[2] / "shared/data")
TAXI = HERE.parents[1] / "examples/pytorch/taxi_fare_kelp.py"
EPOCHS = 3


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


def show(name, values, unit):
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f"{name:<44} {middle:9.1f} {unit}  ({low:.1f} to {high:.1f}, {len(values)} rounds)", flush=True)
    return middle


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
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
