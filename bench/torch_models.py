"""The counterpart of bench/models: the same models, trained by PyTorch's DistributedDataParallel over gloo.

Two processes, one thread each, tensors in memory, no data loader, the batch per process as in
bench/models.c. Prints one number: steps per second, without the warm-up.

    torch_models.py MODEL STEPS PORT

On a GPU: what a lane of a worker does. Forward, loss and backward without an optimizer, in one
process. Samples lie in the host's memory and are copied to the GPU within each step. Deterministic
algorithms. Float32 without TF32; tf32: with it; bfloat16: by autocast. Reads a line "MODEL BATCH
SECONDS" for each measurement, and answers with "A B D": steps per second with the gradients copied
to the host and with the gradients left on the GPU, and whether all algorithms were deterministic
ones (1) or PyTorch lacks some (0).

    torch_models.py --device cuda --precision float32|tf32|bfloat16
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

PROCESSES = 2


def mlp():
    model = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 96))
    return model, 32, [torch.randn(640, 96)], torch.randn(640, 96), nn.MSELoss(), adam(0.005)


def mlp_wide():
    model = nn.Sequential(nn.Linear(4096, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 4096))
    return model, 512, [torch.randn(1024, 4096)], torch.randn(1024, 4096), nn.MSELoss(), adam(0.005)


class DLinear(nn.Module):
    def __init__(self, seq=96, pred=96, kernel=25):
        super().__init__()
        self.half = (kernel - 1) // 2
        self.average = nn.AvgPool1d(kernel, stride=1)
        self.linear_seasonal = nn.Linear(seq, pred)
        self.linear_trend = nn.Linear(seq, pred)

    def forward(self, x):
        padded = torch.cat([x[:, :1].repeat(1, self.half), x, x[:, -1:].repeat(1, self.half)], dim=1)
        trend = self.average(padded.unsqueeze(1)).squeeze(1)
        return self.linear_seasonal(x - trend) + self.linear_trend(trend)


def dlinear():
    return DLinear(), 32, [torch.randn(640, 96)], torch.randn(640, 96), nn.MSELoss(), adam(0.005)


class Fare(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(6, 256), nn.BatchNorm1d(256)
        self.fc2, self.bn2 = nn.Linear(256, 16), nn.BatchNorm1d(16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, x):
        x = self.bn1(F.relu(self.fc1(x)))
        x = self.bn2(F.relu(self.fc2(x)))
        return torch.sigmoid(self.fc3(x))


def fare():
    return Fare(), 64, [torch.randn(1280, 6)], torch.rand(1280, 1), nn.SmoothL1Loss(), adam(0.01)


class DeepFM(nn.Module):
    def __init__(self, vocab, numbers, d=8, hidden=64):
        super().__init__()
        self.w = nn.ModuleList(nn.Embedding(v, 1) for v in vocab)
        self.v = nn.ModuleList(nn.Embedding(v, d) for v in vocab)
        self.lin = nn.Linear(numbers, 1)
        self.mlp = nn.Sequential(nn.Linear(len(vocab) * d + numbers, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, ids, numbers):
        first = sum(w(ids[:, i]) for i, w in enumerate(self.w)) + self.lin(numbers)
        e = torch.stack([v(ids[:, i]) for i, v in enumerate(self.v)], dim=1)
        fm = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        return first + fm + self.mlp(torch.cat([e.flatten(1), numbers], dim=1))


def deepfm():
    vocab, n = [3, 8, 266, 266, 24, 7], 2560
    inputs = [torch.stack([torch.randint(0, v, (n,)) for v in vocab], dim=1), torch.randn(n, 3)]
    target = torch.randint(0, 2, (n, 1)).float()
    return DeepFM(vocab, 3), 128, inputs, target, nn.BCEWithLogitsLoss(), adam(0.001)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        x = self.fc2(self.dropout2(F.relu(self.fc1(x))))
        return F.log_softmax(x, dim=1)


def convnet():
    optimizer = lambda p: torch.optim.Adadelta(p, lr=1.0)
    return ConvNet(), 128, [torch.randn(1280, 1, 28, 28)], torch.randint(0, 10, (1280,)), nn.NLLLoss(), optimizer


class Block(nn.Module):
    def __init__(self, before, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or before != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, before = [], 64
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(before, channels, stride), Block(channels, channels, 1)]
            before = channels
        self.layers, self.fc = nn.Sequential(*blocks), nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        return self.fc(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


def resnet18():
    inputs, classes = [torch.randn(1280, 1, 28, 28)], torch.randint(0, 10, (1280,))
    return ResNet18(), 128, inputs, classes, nn.CrossEntropyLoss(), adam(0.001)


class GLU(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.fc = nn.Linear(before, 2 * after)

    def forward(self, x):
        return F.glu(self.fc(x))


class GRN(nn.Module):
    def __init__(self, before, hidden, after, context=None):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(before, hidden), nn.Linear(hidden, hidden)
        self.context = nn.Linear(context, hidden, bias=False) if context else None
        self.glu, self.norm = GLU(hidden, after), nn.LayerNorm(after)
        self.skip = nn.Linear(before, after) if before != after else None

    def forward(self, x, context=None):
        h = self.fc1(x)
        if self.context is not None:
            c = self.context(context)
            h = h + (c.unsqueeze(1) if x.dim() == 3 else c)
        h = self.glu(self.fc2(F.elu(h)))
        return self.norm((x if self.skip is None else self.skip(x)) + h)


class GateNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.glu, self.norm = GLU(d, d), nn.LayerNorm(d)

    def forward(self, x, skip):
        return self.norm(self.glu(x) + skip)


class Selection(nn.Module):
    def __init__(self, count, d):
        super().__init__()
        self.weight = GRN(count * d, d, count, d)
        self.each = nn.ModuleList(GRN(d, d, d) for _ in range(count))

    def forward(self, variables, context):
        weights = torch.softmax(self.weight(torch.cat(variables, dim=-1), context), dim=-1)
        values = torch.stack([g(v) for g, v in zip(self.each, variables)], dim=-2)
        return (weights.unsqueeze(-1) * values).sum(-2)


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.dk = heads, d // heads
        self.q, self.k = nn.Linear(d, d), nn.Linear(d, d)
        self.v, self.out = nn.Linear(d, self.dk), nn.Linear(self.dk, d, bias=False)

    def forward(self, queries, keys, mask):
        b, n, m = queries.size(0), queries.size(1), keys.size(1)
        q = self.q(queries).view(b, n, self.heads, self.dk).transpose(1, 2)
        k = self.k(keys).view(b, m, self.heads, self.dk).transpose(1, 2)
        scores = (q @ k.transpose(2, 3) / self.dk ** 0.5).masked_fill(mask, -1e9)
        return self.out((torch.softmax(scores, dim=-1) @ self.v(keys).unsqueeze(1)).mean(1))


class TFT(nn.Module):
    def __init__(self, vocab, known, encoder, decoder, d=16, heads=4, quantiles=3):
        super().__init__()
        self.encoder = encoder
        self.emb = nn.Embedding(vocab, d)
        self.cs, self.ch, self.cc, self.ce = (GRN(d, d, d) for _ in range(4))
        self.kn = nn.ModuleList(nn.Linear(1, d) for _ in range(known))
        self.tg = nn.Linear(1, d)
        self.vsn_enc, self.vsn_dec = Selection(known + 1, d), Selection(known, d)
        self.enc, self.dec = nn.LSTM(d, d, batch_first=True), nn.LSTM(d, d, batch_first=True)
        self.gate1, self.gate2, self.gate3 = GateNorm(d), GateNorm(d), GateNorm(d)
        self.enrich, self.ff = GRN(d, d, d, d), GRN(d, d, d)
        self.att, self.out = Attention(d, heads), nn.Linear(d, quantiles)
        positions = torch.arange(encoder + decoder)
        self.mask = positions[None, :] > positions[encoder:, None]

    def forward(self, static, known, target, ahead):
        e = self.emb(static)
        cs, ch, cc, ce = self.cs(e), self.ch(e), self.cc(e), self.ce(e)
        inputs = [f(known[..., i:i + 1]) for i, f in enumerate(self.kn)] + [self.tg(target.unsqueeze(-1))]
        before = self.vsn_enc(inputs, cs)
        after = self.vsn_dec([f(ahead[..., i:i + 1]) for i, f in enumerate(self.kn)], cs)
        enc, state = self.enc(before, (ch.unsqueeze(0), cc.unsqueeze(0)))
        dec, _ = self.dec(after, state)
        g1 = self.gate1(torch.cat([enc, dec], dim=1), torch.cat([before, after], dim=1))
        rich = self.enrich(g1, ce)
        queries = rich[:, self.encoder:]
        g2 = self.gate2(self.att(queries, rich, self.mask), queries)
        return self.out(self.gate3(self.ff(g2), g1[:, self.encoder:]))


class QuantileLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.tensor([0.1, 0.5, 0.9])

    def forward(self, output, target):
        error = target.unsqueeze(-1) - output
        return torch.maximum(self.q * error, (self.q - 1) * error).mean()


def tft():
    n, known, encoder, decoder = 1280, 6, 63, 168
    inputs = [torch.randint(0, 73, (n,)), torch.randn(n, encoder, known),
              torch.randn(n, encoder), torch.randn(n, decoder, known)]
    return TFT(73, known, encoder, decoder), 128, inputs, torch.randn(n, decoder), QuantileLoss(), adam(0.01)


def adam(lr):
    return lambda parameters: torch.optim.Adam(parameters, lr=lr)


MODELS = {f.__name__: f for f in (mlp, mlp_wide, dlinear, fare, deepfm, convnet, resnet18, tft)}


def run(rank, name, steps, port, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    torch.manual_seed(0)
    model, batch, inputs, target, loss, optimizer = MODELS[name]()
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = optimizer(model.parameters())
    begin = 0.0
    warm_up = max(2, steps // 10)
    for step in range(warm_up + steps):
        if step == warm_up:
            dist.barrier()
            begin = time.perf_counter()
        at = (step * PROCESSES + rank) * batch % (len(target) - batch + 1)
        optimizer.zero_grad()
        loss(model(*(x[at:at + batch] for x in inputs)), target[at:at + batch]).backward()
        if name == "tft":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    if rank == 0:
        queue.put(steps / (time.perf_counter() - begin))
    dist.barrier()
    dist.destroy_process_group()


def on_gpu(module):
    """Move the module to the GPU, with its tensors that are neither parameters nor buffers."""
    for part in module.to("cuda").modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                setattr(part, name, value.to("cuda"))
    return module


class Lane:
    WARM_UP, LEAST, MOST = 3, 3, 5000  # steps

    def __init__(self, name, batch, precision):
        torch.manual_seed(0)
        self.autocast = precision == "bfloat16"
        model, _, self.inputs, self.target, loss, _ = MODELS[name]()
        self.model, self.loss, self.batch, self.done = on_gpu(model), on_gpu(loss), batch, 0
        self.parameters = list(self.model.parameters())
        self.host = [torch.empty(p.shape, pin_memory=True) for p in self.parameters]

    def step(self, to_host):
        at = self.done * self.batch % (len(self.target) - self.batch + 1)
        self.done += 1
        inputs = [x[at:at + self.batch].to("cuda", non_blocking=True) for x in self.inputs]
        target = self.target[at:at + self.batch].to("cuda", non_blocking=True)
        self.model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.autocast):
            output = self.model(*inputs)
        self.loss(output.float(), target).backward()
        if to_host:
            for host, parameter in zip(self.host, self.parameters):
                host.copy_(parameter.grad, non_blocking=True)
            torch.cuda.synchronize()

    def seconds(self, to_host, steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step(to_host)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    def rate(self, to_host, seconds):
        self.seconds(to_host, self.WARM_UP)
        one = self.seconds(to_host, 1)
        steps = min(max(self.LEAST, int(seconds / one)), self.MOST)
        return steps / self.seconds(to_host, steps)

    def measure(self, seconds):
        for lacking in (False, True):
            torch.use_deterministic_algorithms(True, warn_only=lacking)
            try:
                return self.rate(True, seconds), self.rate(False, seconds), int(not lacking)
            except RuntimeError as error:
                if lacking or "deterministic" not in str(error):
                    raise


def answer(precision):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before CUDA starts
    if not torch.cuda.is_available():
        sys.exit("torch_models: this PyTorch sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.utils.deterministic.fill_uninitialized_memory = False  # slow, and without effect on results
    print("PyTorch", torch.__version__, "on", torch.cuda.get_device_name(), flush=True)
    lane, key = None, None
    for line in sys.stdin:
        name, batch, seconds = line.split()
        try:
            if key != (name, batch):
                lane = None
                torch.cuda.empty_cache()
                lane, key = Lane(name, int(batch), precision), (name, batch)
            print(*lane.measure(float(seconds)), flush=True)
        except Exception as error:  # other models may work
            lane, key = None, None
            print("failed:", type(error).__name__, str(error).partition("\n")[0], flush=True)


if __name__ == "__main__":
    if sys.argv[1:4] == ["--device", "cuda", "--precision"]:
        answer(sys.argv[4])
        sys.exit(0)
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run, args=(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), results), nprocs=PROCESSES)
    print(results.get())
