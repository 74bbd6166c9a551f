"""The counterpart of bench/steps: DLinear S, trained by PyTorch's DistributedDataParallel over gloo.

Two processes, one thread each, 32 windows of 96 -> 96 a step and process, tensors in memory, no
data loader. Prints one number: steps per second, without the warm-up.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

SEQ, PRED, KERNEL, BATCH = 96, 96, 25, 32


class DLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.average = nn.AvgPool1d(KERNEL, stride=1)
        self.linear_seasonal = nn.Linear(SEQ, PRED)
        self.linear_trend = nn.Linear(SEQ, PRED)

    def forward(self, x):
        half = (KERNEL - 1) // 2
        padded = torch.cat([x[:, :1].repeat(1, half), x, x[:, -1:].repeat(1, half)], dim=1)
        trend = self.average(padded.unsqueeze(1)).squeeze(1)
        return self.linear_seasonal(x - trend) + self.linear_trend(trend)


def run(rank, world, steps, port, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    series = torch.randn(8640)
    model = nn.parallel.DistributedDataParallel(DLinear())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    loss_function = nn.MSELoss()
    windows = series.unfold(0, SEQ + PRED, 1).contiguous()
    order = torch.randperm(len(windows))[rank::world]
    begin = 0.0
    warm_up = steps // 10
    for step in range(warm_up + steps):
        if step == warm_up:
            begin = time.perf_counter()
        at = step * BATCH % (len(order) - BATCH)
        batch = windows[order[at:at + BATCH]]
        optimizer.zero_grad()
        loss_function(model(batch[:, :SEQ]), batch[:, SEQ:]).backward()
        optimizer.step()
    if rank == 0:
        queue.put(steps / (time.perf_counter() - begin))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    steps, port = int(sys.argv[1]), int(sys.argv[2])
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run, args=(2, steps, port, queue), nprocs=2)
    print(queue.get())
