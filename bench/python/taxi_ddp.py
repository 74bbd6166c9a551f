"""examples/pytorch/taxi_fare.py with PyTorch's DistributedDataParallel over gloo: two processes of one thread each.

Each takes 32 of a step's 64 samples, from a DataLoader as in the script or, with --raw, as rows of tensors in memory.
Prints one number: steps per second over the epochs, without evaluations and the first 50 steps.

    taxi_ddp.py EPOCHS PORT DATA [--raw]
"""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/pytorch"))
from data import taxi_trips

PROCESSES, BATCH, WARM_UP = 2, 32, 50


class FarePredictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(6, 256), nn.BatchNorm1d(256)
        self.fc2, self.bn2 = nn.Linear(256, 16), nn.BatchNorm1d(16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, x):
        x = self.bn1(F.relu(self.fc1(x)))
        x = self.bn2(F.relu(self.fc2(x)))
        return torch.sigmoid(self.fc3(x))


def batches(train, sampler, raw):
    if not raw:
        return DataLoader(train, batch_size=BATCH, sampler=sampler)
    return ([tensor[part] for tensor in train.tensors] for part in torch.tensor(list(sampler)).split(BATCH))


def run(rank, epochs, port, raw, rates):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    torch.manual_seed(1)
    train, _ = taxi_trips()
    model = nn.parallel.DistributedDataParallel(FarePredictor())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = DistributedSampler(train)
    steps, begin = 0, 0.0
    model.train()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in batches(train, sampler, raw):
            if steps == WARM_UP:
                begin = time.perf_counter()
            loss = F.smooth_l1_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    if rank == 0:
        rates.put((steps - WARM_UP) / (time.perf_counter() - begin))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    rates = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run, args=(int(sys.argv[1]), int(sys.argv[2]), "--raw" in sys.argv, rates), nprocs=PROCESSES)
    print(f"{rates.get():.1f}")
