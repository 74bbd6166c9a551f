"""Fits a plane to noisy points. It needs no data files, so it is a quick test of an installation.

    kelp run examples/pytorch/plane.py
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import kelp.torch

torch.manual_seed(1)
x = torch.randn(1000, 2)
y = x @ torch.tensor([[2.0], [-3.0]]) + 0.1 * torch.randn(1000, 1)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train, val = TensorDataset(x[:800], y[:800]), TensorDataset(x[800:], y[800:])

with kelp.torch.Worker(model, train, val=val, optimizer=optimizer, epochs=5, batch_size=40, lanes=4) as worker:
    for batch in worker:
        x, y = batch.data
        batch.submit(F.mse_loss(model(x), y))
