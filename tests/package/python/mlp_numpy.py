#!/usr/bin/python3
"""examples/worker/mlp.c with numpy: the same operations, and so the same bits."""

import json
import os
import signal

import numpy as np

import kelp


def read_rows(path):
    rows = np.fromfile(path, dtype=np.float32).reshape(-1, 10)
    return rows, rows[:, :8], rows[:, 8:]


def died_before(step):
    """Once in a run, in some worker, at a lane of this step."""
    path = os.environ.get("TEST_DIES", "")
    if not path or step < 3:
        return
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    rows, x, y = read_rows("rows.bin")
    train, val = 800, 200
    with kelp.Worker(train=train, val=val, fingerprint=kelp.fingerprint(rows)) as worker:
        widths = [8, *json.loads(worker.setting("model.hidden")), 2]
        count = len(widths) - 1
        for n, (inputs, outputs) in enumerate(zip(widths, widths[1:]), 1):
            worker.tensor(f"fc{n}.weight", kelp.uniform((outputs, inputs), 1 / np.sqrt(inputs)))
            worker.tensor(f"fc{n}.bias", kelp.uniform(outputs, 1 / np.sqrt(inputs)))
        w = {}  # a worker that comes late may get no batch
        for batch in worker:
            died_before(batch.step)
            w, g = batch.weights, batch.gradient
            for view in w.values():
                assert not view.flags.writeable, "weights can be written"
            assert all(view.flags.writeable for view in g.values()), "a gradient cannot be written"
            first = 0 if batch.part == "train" else train
            values = [x[first + batch.indices]]
            target = y[first + batch.indices]
            for n in range(1, count + 1):
                out = values[-1] @ w[f"fc{n}.weight"].T + w[f"fc{n}.bias"]
                values.append(np.where(out > 0, out, np.float32(0)) if n < count else out)
            error = values[-1] - target
            squares = np.square(error.astype(np.float64))
            sums = {}
            if batch.training:
                scale = np.float32(np.float64(np.float32(1 / batch.step_samples)) / 2)
                slope = scale * (np.float32(2) * error)
                for n in range(count, 0, -1):
                    g[f"fc{n}.weight"] += slope.T @ values[n - 1]
                    g[f"fc{n}.bias"] += slope.sum(axis=0)
                    if n > 1:
                        slope = np.where(values[n - 1] > 0, slope @ w[f"fc{n}.weight"], np.float32(0))
            else:
                sums = dict(squared=squares.sum(), absolute=np.abs(error.astype(np.float64)).sum(), elements=error.size)
            batch.submit((squares.sum(axis=1) / 2).sum(), **sums)
    # What is still in use keeps its memory.
    assert all(np.isfinite(view).all() for view in w.values())


main()
