"""ResNet18 on FashionMNIST: one epoch over 20,000 training samples; 86 % of the test samples are right then.

    kelp run examples/pytorch/resnet18_kelp.py FOLDER
"""

import torch
from torch import nn
from torch.nn import functional as F

import kelp.torch
from data import Images


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
                nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x))
        return F.relu(y)


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
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


torch.manual_seed(1)
train = Images("fashion-mnist", "train", mean=0.5, std=0.5, limit=20000)
test = Images("fashion-mnist", "t10k", mean=0.5, std=0.5)
model = ResNet18()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=157)

with kelp.torch.Worker(
    model, train, test=test, optimizer=optimizer, scheduler=scheduler, scheduler_unit="step",
    epochs=1, batch_size=128, lanes=2,
) as worker:
    for batch in worker:
        x, y = batch.data
        out = model(x)
        batch.submit(F.cross_entropy(out, y), correct=(out.argmax(1) == y).sum())
