"""ConvNet on MNIST, as in PyTorch's example: 98.8 % of the test samples are right after 2 epochs.

    kelp run examples/pytorch/mnist_convnet_kelp.py FOLDER
"""

import torch
from torch import nn
from torch.nn import functional as F

import kelp.torch
from data import Images


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return self.fc2(self.dropout2(F.relu(self.fc1(x))))


torch.manual_seed(1)
train, test = (Images("mnist", part, mean=0.1307, std=0.3081) for part in ("train", "t10k"))
model = ConvNet()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

with kelp.torch.Worker(
    model, train, test=test, optimizer=optimizer, scheduler=scheduler, epochs=2, batch_size=128, lanes=4
) as worker:
    for batch in worker:
        x, y = batch.data
        out = model(x)
        batch.submit(F.cross_entropy(out, y), correct=(out.argmax(1) == y).sum())
