"""What kelp.torch adds to a lane of eight samples: a script for one worker, which bench.py runs.

    lane.py tensors|samples     its data: a TensorDataset, or single samples that collate_fn combines

From the time of each iteration of the loop it subtracts the time of torch and the wait for the next lane (`next`).
Torch's time is forward and loss, backward, and what any script needs: selecting rows of the data, setting the gradient
to zero, seeding a generator (`rows`, `zero`, `seed`). The rest is the binding. The medians, in microseconds, go to the
file that BENCH_LANES names.
"""

import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset, default_collate

import kelp.torch

WARM_UP = 200

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 96))
tensors = TensorDataset(torch.randn(8000, 96), torch.randn(8000, 96))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
spent = dict.fromkeys(("backward", "rows", "zero", "seed", "next"), 0.0)


def timed(name, function):
    def call(*arguments, **settings):
        begin = time.perf_counter()
        result = function(*arguments, **settings)
        spent[name] += time.perf_counter() - begin
        return result

    return call


class Samples(Dataset):
    def __len__(self):
        return len(tensors)

    def __getitem__(self, number):
        return tensors[number]


class Core:
    """The extension's worker, with one call timed."""

    def __init__(self, core):
        for name in dir(core):
            if not name.startswith("_"):
                setattr(self, name, getattr(core, name))
        self.next = timed("next", core.next)


torch.autograd.backward = timed("backward", torch.autograd.backward)
Samples.__getitem__ = timed("rows", Samples.__getitem__)
torch.Tensor.index_select = timed("rows", torch.Tensor.index_select)
torch.Tensor.zero_ = timed("zero", torch.Tensor.zero_)
kelp.torch._bits._default_seed = timed("seed", kelp.torch._bits._default_seed)
parts = {name: [] for name in ("binding", "forward", *spent)}
if sys.argv[1] == "tensors":
    train, collate = tensors, None
else:
    train, collate = Samples(), timed("rows", default_collate)
with kelp.torch.Worker(
    model,
    train,
    optimizer=optimizer,
    epochs=4,
    batch_size=8,
    lanes=1,
    settings={"train.evaluate": False},
    collate_fn=collate,
) as worker:
    worker._core = Core(worker._core)
    end = time.perf_counter()
    for batch in worker:
        x, y = batch.data
        assert batch.rehearsal or len(x) == 8
        forward = time.perf_counter()
        loss = F.mse_loss(model(x), y)
        forward = time.perf_counter() - forward
        batch.submit(loss)
        now = time.perf_counter()
        if not batch.rehearsal:
            parts["binding"].append(now - end - forward - sum(spent.values()))
            parts["forward"].append(forward)
            for name, seconds in spent.items():
                parts[name].append(seconds)
        spent.update(dict.fromkeys(spent, 0.0))
        end = time.perf_counter()

with open(os.environ["BENCH_LANES"], "w", encoding="ascii") as file:
    for name, seconds in parts.items():
        file.write(f"{name} {1e6 * statistics.median(seconds[WARM_UP:]):.1f}\n")
