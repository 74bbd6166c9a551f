"""A worker's connection without a job behind it."""

import torch

SETTINGS = {
    "train.batch_size": "8",
    "cluster.lanes": "2",
    "cluster.lane_threads": "1",
    "train.accumulate": "1",
    "train.drop_last": "false",
    "model.init": "init.safetensors",
    "model.sums": "[]",
    "run.mode": "train",
}


class Core:
    """As kelp._kelp.Worker: a list of lanes, each (kind, indices), all in one piece; weights are what the test says."""

    def __init__(self, lanes=(), **settings):
        self.settings = {**SETTINGS, **{key.replace("__", "."): value for key, value in settings.items()}}
        self.tensors, self.sums, self.gradients, self.predictions = [], [], [], []
        self.answer = self.kind = None
        self.joined = self.closed = self.stopped = False
        self._lanes = list(lanes)
        self._open = False

    def setting(self, key):
        return self.settings[key]

    def plan_data(self, *data):
        self.data = data

    def plan_block(self, samples):
        self.block = samples

    def plan_program(self, digest):
        pass

    def plan_compute(self, kind, answer):
        self.kind, self.answer = kind, answer

    def plan_reasons(self, reasons):
        self.reasons = reasons

    def plan_tensor(self, name, shape, init, a, momentum, held):
        self.tensors.append((name, shape, init, "held" if held else "statistic" if momentum == 1 else "parameter"))

    def offset(self, tensor):
        return sum(-(-torch.Size(shape).numel() // 16) * 16 for _, shape, _, _ in self.tensors[:tensor])

    def join(self):
        self.joined = not self.stopped
        size = 4 * self.offset(len(self.tensors))
        self.vectors = [bytearray(size), bytearray(size)]
        self._gradient = bytearray(size)
        return self.joined

    def values(self, memory, name):
        """A tensor in a vector, to be read or written."""
        number = [tensor[0] for tensor in self.tensors].index(name)
        shape = torch.Size(self.tensors[number][1])
        return torch.frombuffer(
            memory, dtype=torch.float32, count=shape.numel(), offset=4 * self.offset(number)
        ).view(shape)

    def weights(self, which, writable):
        return self.vectors[which]

    def gradient(self):
        return self._gradient

    def next(self):
        if self.stopped or not self._lanes:
            return None
        kind, self._indices = self._lanes[0]
        count = len(self._indices)
        return (kind, 0, 0, 0, count, 8, len(self._lanes) % 2, 0, 7, 0.1, 0, count)

    def indices(self):
        return bytearray(torch.tensor(self._indices).numpy().tobytes())

    def add(self, number, value):
        self.sums.append((number, value))

    def add_named(self, name, value):
        self.sums.append((name, value))

    def predict(self, values, width):
        self.predictions.append((values.tolist(), width))

    def submit(self):
        self.gradients.append(bytes(self._gradient))
        self._lanes.pop(0)

    def spent_reading(self, us):
        pass

    def over(self):
        return not self._lanes

    def stop(self):
        self.stopped = True

    def interrupt(self):
        pass

    def close(self):
        self.closed = True
