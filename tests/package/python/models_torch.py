#!/usr/bin/python3
"""Modules that are trained by kelp.torch.Worker, or by torch alone: an argument names one."""

import os
import random
import signal
import sys
import time
from typing import Callable, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset


TEST_PREDICTS_NOT = "TEST_PREDICTS_NOT" in os.environ


class Rows(Dataset):
    """Rows with noise that is drawn anew each time."""

    def __init__(self, x, y, noise):
        self.x, self.y, self.noise = x, y, noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        noise = self.noise * (torch.randn(8) + np.float32(np.random.rand()) + random.random())
        return self.x[i] + noise, self.y[i]


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))


class Mixed(nn.Module):
    """Batch norm, dropout, a frozen layer, tied weights, a buffer that stays, bfloat16."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.norm = nn.BatchNorm1d(32)
        self.tied = nn.Linear(32, 32, bias=False)
        self.tied_again = nn.Linear(32, 32, bias=False)
        self.tied_again.weight = self.tied.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 32))
        self.last = nn.Linear(32, 2)

    def forward(self, x):
        x = F.relu(self.norm(self.frozen(self.first(x)))) * self.scale
        x = F.dropout(self.tied_again(F.relu(self.tied(x))), 0.3, self.training)
        return self.last(x)


class Norm(nn.Module):
    """Batch norm over pictures and over rows, dropout."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 6, 3), nn.BatchNorm1d(6)
        self.hidden, self.norm_again = nn.Linear(36, 64), nn.BatchNorm1d(64)
        self.last = nn.Linear(64, 2)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x[:, None]))).flatten(1)
        return self.last(F.dropout(F.relu(self.norm_again(self.hidden(x))), 0.3, self.training))


class Lstm(nn.Module):
    """A row as a series of eight numbers, two layers."""

    def __init__(self, dropout=0.2):
        super().__init__()
        self.lstm = nn.LSTM(1, 20, num_layers=2, batch_first=True, dropout=dropout)
        self.last = nn.Linear(20, 2)

    def forward(self, x):
        return self.last(self.lstm(x[:, :, None])[0][:, -1])


class Transformer(nn.Module):
    """A row as eight tokens; the encoder computes an evaluation by another path than training."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.embedding = nn.Linear(1, 16)
        self.place = nn.Parameter(torch.linspace(-1, 1, 128).reshape(8, 16))
        layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.last = nn.Linear(128, 2)

    def forward(self, x):
        return self.last(self.encoder(self.embedding(x[:, :, None]) + self.place).flatten(1))


class Tied(nn.Module):
    """A frozen layer, a layer that is there twice, a weight that two layers have."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.twice = self.twice_again = nn.Linear(32, 32)
        self.tied, self.tied_again = nn.Linear(32, 32, bias=False), nn.Linear(32, 32)
        self.tied_again.weight = self.tied.weight
        self.last = nn.Linear(32, 2)

    def forward(self, x):
        x = F.relu(self.twice(self.frozen(self.first(x))))
        return self.last(F.relu(self.tied_again(self.tied(self.twice_again(x)))))


class Every(nn.Module):
    """All of these at once."""

    def __init__(self):
        super().__init__()
        self.mixed, self.lstm, self.transformer = Mixed(), Lstm(), Transformer()

    def forward(self, x):
        out = self.mixed(x)
        with torch.autocast("cpu", enabled=False):
            return out.float() + self.lstm(x) + self.transformer(x)


def wait_for_joiner(step):
    """TEST_JOINS=WORKER:STEP:EVENTS: at that step, until the run's events have that worker."""
    who, _, rest = os.environ.get("TEST_JOINS", "").partition(":")
    at, _, path = rest.partition(":")
    if not who or step < int(at):
        return
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with open(path, encoding="utf-8") as file:
            if any('"worker-joined"' in line and f'"{who}"' in line for line in file):
                os.environ.pop("TEST_JOINS")
                return
        time.sleep(0.01)
    raise TimeoutError(f"{who} has not joined")


def die_before(step):
    """Once in a run, in some worker, at a lane of this step."""
    path = os.environ.get("TEST_DIES", "")
    if not path or step < 3:
        return
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def write_rows():
    """rows.bin, which examples/worker/mlp.c writes too."""
    state, rows = 1, np.empty((1000, 10), np.float32)
    for row in rows:
        for i in range(8):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            row[i] = np.float32(np.uint32(state).astype(np.int32)) * np.float32(2.0**-31)
        row[8] = row[0] * row[1] + row[2]
        row[9] = abs(row[3]) - row[4]
    rows.tofile("rows.bin")


def data(noise=0.0):
    rows = torch.from_numpy(np.fromfile("rows.bin", dtype=np.float32).reshape(-1, 10))
    x, y = rows[:, :8].contiguous(), rows[:, 8:].contiguous()
    if noise > 0:
        return Rows(x[:800], y[:800], noise), TensorDataset(x[800:], y[800:])
    return TensorDataset(x[:800], y[:800]), TensorDataset(x[800:], y[800:])


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


class Plain(nn.Module):
    """What torch alone trains: batch norm over the whole batch, a frozen layer, tied weights."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.tied, self.tied_again = nn.Linear(16, 16), nn.Linear(16, 16)
        self.tied_again.weight = self.tied.weight
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        x = self.frozen(F.relu(self.norm(self.first(x))))
        return self.last(F.relu(self.tied_again(F.relu(self.tied(x)))))


def plain_module(kind):
    """Without dropout: torch alone draws other numbers."""
    torch.manual_seed(1)
    return Lstm(0.0) if kind == "lstm" else Transformer(0.0) if kind == "transformer" else Plain()


def plain_optimizer(kind, model):
    if kind in OPTIMIZERS:
        return OPTIMIZERS[kind](model.parameters())
    # Adam makes whole steps of what rounding leaves of a gradient of zero, such as that of a bias of attention's keys.
    return torch.optim.SGD(model.parameters(), lr=0.01)


def plain_states(kind, train, steps):
    """The module's state after each step of torch alone, over batches of 60 samples in their order."""
    model = plain_module(kind)
    optimizer = plain_optimizer(kind, model)
    states = [{name: value.clone() for name, value in model.state_dict().items()}]
    for step in range(steps):
        x, y = train[60 * step : 60 * (step + 1)]
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    return states


def compare(kind):
    """Weights and statistics are those of torch alone, after each step."""
    import kelp.torch

    train, val = data()
    model = plain_module(kind)
    seen = set()
    optimizer = plain_optimizer(kind, model)
    with kelp.torch.Worker(model, train, val, optimizer=optimizer, epochs=1, batch_size=60, lanes=1) as worker:
        states = plain_states(kind, train, 5)
        for batch in worker:
            if not batch.rehearsal:
                seen.add(batch.step)
                for name, value in model.state_dict().items():
                    # a lane of training has statistics of its own
                    if value.is_floating_point() and not (batch.training and "running" in name and batch.step > 0):
                        worst = (value - states[batch.step][name]).abs().max().item()
                        assert worst < 1e-4, f"{kind}, after {batch.step} steps: {name} is {worst} off"
            x, y = batch.data
            batch.submit(F.mse_loss(model(x), y))
    assert seen == {0, 1, 2, 3, 4, 5}, f"{kind}: only steps {seen} were seen"
    open(f"compared-{kind}", "w").close()


class Foreseen:
    """How many batches were named to the data processes before they came."""

    def __init__(self, loader):
        self._expect, loader.expect = loader.expect, self.expect
        self._before, self._now = {}, {}
        self.right = self.all = 0

    def expect(self, part, pieces):
        self._now[part] = {tuple(indices.tolist()) for indices, _ in pieces}
        self._expect(part, pieces)

    def count(self, batch):
        self.all += 1
        self.right += tuple(batch.indices.tolist()) in self._before.get(batch.part, ())
        self._before = dict(self._now)
        if self.all == 30:
            print(f"{self.right} of {self.all} batches were foreseen", flush=True)
            assert self.right > 15, f"{self.right} of {self.all} batches were foreseen"


class Kind(NamedTuple):
    """A module, and how it is trained."""

    module: Callable[[], nn.Module]
    noise: float = 0
    bfloat16: bool = False
    lanes: int = 8
    accumulate: int = 1


KINDS = {
    "mlp": Kind(Mlp),
    "norm": Kind(Norm),
    "lstm": Kind(Lstm),
    "transformer": Kind(Transformer),
    "tied": Kind(Tied, accumulate=2),
    "bfloat16": Kind(Mlp, bfloat16=True),
    "augmented": Kind(Mlp, noise=0.01),
    "mixed": Kind(Mixed, noise=0.01, bfloat16=True, lanes=4, accumulate=2),
    "every": Kind(Every, noise=0.01, bfloat16=True, lanes=4, accumulate=2),
}


def train_and_die(kind, processes):
    import kelp.torch

    model = kind.module()
    train, val = data(kind.noise)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with kelp.torch.Worker(
        model, train, val, optimizer=optimizer, epochs=3, batch_size=60, lanes=kind.lanes, accumulate=kind.accumulate,
        seed=7, workers=processes, sums=["near", "far=min"],
    ) as worker:  # fmt: skip
        foreseen = Foreseen(worker._loader)
        for batch in worker:
            if not batch.rehearsal:
                die_before(batch.step)
                wait_for_joiner(batch.step)
                if processes and "TEST_DIES" in os.environ:
                    foreseen.count(batch)
            x, y = batch.data
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind.bfloat16):
                out = model(x)
            error = (out.detach() - y).double()
            distance = error.abs().sum(1)
            batch.submit(
                F.mse_loss(out.float(), y), predictions=None if TEST_PREDICTS_NOT else out,
                squared=error.square().sum(), absolute=error.abs().sum(), elements=error.numel(),
                near=(distance < 0.5).sum(), far=(distance > 1).sum(),
            )  # fmt: skip


def use(run):
    """A module with the weights of a run, or of its newest checkpoint, gives what kelp predict wrote."""
    import kelp.torch

    x, _ = data()[1][:]
    for what in ("model.safetensors", "the newest checkpoint"):
        model = kelp.torch.load(Mixed(), run).eval()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x).float()
        worst = (out - torch.from_numpy(np.load("predicted.npy"))).abs().max().item()
        assert worst < 0.02, f"with {what} kelp predict is {worst} off"
        if what == "model.safetensors":
            os.remove(os.path.join(run, what))


def differ(how):
    """One of two workers does something else, or the script fails."""
    import kelp.torch

    other = False
    if "KELP_DESCRIBE" not in os.environ:
        try:
            os.close(os.open("first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            other = True
    train, val = data()
    if other and how == "length":
        train = TensorDataset(*train[:799])
    model = Mlp()
    optimizer = torch.optim.Adam(model.parameters())
    with kelp.torch.Worker(model, train, val, optimizer=optimizer, epochs=2, batch_size=60, lanes=8) as worker:
        if other and how == "threads":
            torch.set_num_threads(2)
        for batch in worker:
            x, y = batch.data
            if how == "raise" and batch.step == 2:
                raise ValueError("the third step\nis one too many")
            if how == "break" and batch.step == 2:
                break
            batch.submit(F.l1_loss(model(x), y) if other and how == "loss" else F.mse_loss(model(x), y))


def main():
    what, which = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    if what == "plain":
        compare(which)
    elif what == "refused":
        import kelp.torch

        kelp.torch.Worker(nn.Embedding(3, 2, sparse=True), data()[0])
    elif what == "rows":
        write_rows()
    elif what == "differ":
        differ(which)
    elif what == "use":
        use(which)
    else:
        train_and_die(KINDS[what], int(which or "0"))


if __name__ == "__main__":
    main()
