#!/usr/bin/python3
"""Scripts that fail: an argument says how. TEST_ONCE names a file that the first one to fail makes."""

import os
import signal
import sys
import threading

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import kelp.torch

how = sys.argv[1]


def once():
    """Is this the first process of the run that asks?"""
    try:
        os.close(os.open(os.environ["TEST_ONCE"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Rows(Dataset):
    """Samples that fail to be fetched."""

    def __init__(self, how):
        self.how, self.worker = how, os.getpid()

    def __len__(self):
        return 240

    def __getitem__(self, i):
        if i == 77 and os.getpid() != self.worker:
            if self.how == "data-raises":
                raise LookupError("there is no row 77")
            if self.how == "data-dies" and once():
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "fetch-dies" and once():
                os.kill(self.worker, signal.SIGKILL)
        return torch.full((8,), i / 240), torch.full((2,), i / 120)


class Table(nn.Module):
    """Sparse gradients that no layer tells of."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8, 2))

    def forward(self, x):
        return F.embedding((x[:, 0] * 7).long(), self.weight, sparse=True)


def module():
    torch.manual_seed(1)
    if how == "sparse":
        return Table()
    if how == "single":
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return torch.jit.script(net) if how == "jit" else net


def train():
    model = module()
    fetched = how.startswith(("data-", "fetch-", "waits"))
    rows = Rows(how) if fetched else TensorDataset(torch.rand(240, 8), torch.rand(240, 2))
    if how == "exits-early":
        sys.exit(3)
    sizes = {"single": (8, 8), "sum": (96, 4)}.get(how, (24, 4))
    with kelp.torch.Worker(
        model, rows, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), epochs=2000 if how == "waits" else 3,
        batch_size=sizes[0], lanes=sizes[1], workers=2 if fetched else 0,
    ) as worker:  # fmt: skip
        for batch in worker:
            x, y = batch.data
            late = not batch.rehearsal and batch.step == 5
            if how == "exits" and late:
                sys.exit(3)
            if how == "exits-0" and late:
                sys.exit()
            if how == "exits-words" and late:
                sys.exit("no more today")
            if how == "breaks" and late:
                break
            if how == "aborts" and late:
                os.abort()
            if how == "no-submit":
                continue
            if how == "waits" and late:
                once()
            loss = F.mse_loss(model(x), y, reduction="sum" if how == "sum" else "mean")
            if how == "not-finite" and late:
                loss = loss * float("nan")
            batch.submit(loss)
            if how == "twice" and late:
                batch.submit(loss)
            if how == "steps" and late:
                optimizer_step(model)
    if how == "after":
        raise LookupError("there is nothing after the loop")
    if how == "thread":
        threading.Thread(target=threading.Event().wait).start()


def optimizer_step(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)


if __name__ == "__main__":
    train()
