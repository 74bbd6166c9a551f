#!/usr/bin/python3
"""Scripts that fail, with numpy alone: an argument says how. TEST_ONCE names a file that says how far one came."""

import os
import signal
import sys
import threading

how = sys.argv[1]
describes = "KELP_DESCRIBE" in os.environ


def reached():
    open(os.environ["TEST_ONCE"], "w").close()


if how == "missing":
    import a_module_that_nobody_has  # noqa: F401
if how == "before" and not describes:
    raise LookupError("there is no table today")
if how == "says-why" and not describes:
    sys.exit("no table, no training")
if how == "ends-silent":
    sys.exit(1)
if how == "told-to-end" and describes:
    reached()
    signal.pause()
if how == "stubborn" and describes:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reached()
    threading.Event().wait()

import kelp  # noqa: E402

if how == "exits-early":
    sys.exit(3)


def train(epochs):
    settings = {"train.epochs": epochs, "train.batch_size": 100, "cluster.lanes": 2}
    if how == "cosine":
        settings |= {"train.schedule": "cosine", "train.schedule_unit": "step", "train.schedule_total": 24}
    with kelp.Worker(train=800, fingerprint=1, settings=settings) as worker:
        worker.tensor("w", kelp.constant(4))
        for batch in worker:
            if batch.training:
                batch.gradient["w"] += 1
                if batch.step == 20:
                    reached()
            batch.submit(1.0, **({"correct": 0.3} if how == "mean" and batch.training and batch.step == 5 else {}))


train(1000000 if how == "trains" else 3)
if how == "second":
    train(5)
if how == "after":
    raise LookupError("there is nothing after the loop")
if how == "exits-after":
    sys.exit(3)
if how == "goes-on":
    threading.Event().wait()
