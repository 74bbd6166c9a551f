"""Runs examples/pytorch/taxi_fare_kelp.py unchanged in workers that note when they get each step, for bench.py --loss.

Each lane of training adds a line to the file that BENCH_STEPS names: CLOCK_MONOTONIC, the step, the worker, its
process.
"""

import os
import pathlib
import runpy
import sys
import time

import kelp.torch

TAXI = pathlib.Path(__file__).resolve().parents[2] / "examples/pytorch/taxi_fare_kelp.py"


notes = open(os.environ["BENCH_STEPS"], "a", buffering=1, encoding="ascii")


class Worker(kelp.torch.Worker):
    def __next__(self):
        batch = super().__next__()
        if batch.training and not batch.rehearsal:
            notes.write(f"{time.monotonic():.6f} {batch.step} {os.environ['KELP_ID']} {os.getpid()}\n")
        return batch


kelp.torch.Worker = Worker
sys.path.insert(0, str(TAXI.parent))
runpy.run_path(str(TAXI), run_name="__main__")
