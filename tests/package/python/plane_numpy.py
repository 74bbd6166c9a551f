#!/usr/bin/python3
"""examples/pytorch/plane.py with numpy."""

import numpy as np

import kelp

x = np.random.default_rng(1).normal(size=(1000, 2)).astype(np.float32)
y = x @ np.array([[2], [-3]], np.float32)
settings = {"train.epochs": 5, "train.batch_size": 40, "train.lr": 0.1, "train.optimizer": "sgd", "cluster.lanes": 4}
with kelp.Worker(train=800, val=200, fingerprint=kelp.fingerprint(x, y), settings=settings) as worker:
    worker.tensor("weight", kelp.uniform((2, 1), 0.1))
    for batch in worker:
        rows = batch.indices + (0 if batch.part == "train" else 800)
        error = x[rows] @ batch.weights["weight"] - y[rows]
        if batch.training:
            batch.gradient["weight"] += x[rows].T @ (2 * error / batch.step_samples)
        batch.submit(np.square(error, dtype=np.float64).sum())
