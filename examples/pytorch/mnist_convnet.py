"""ConvNet on MNIST, as in PyTorch's example: 98.8 % of the test samples are right after 2 epochs."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

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

for epoch in range(2):
    model.train()
    for x, y in DataLoader(train, batch_size=128, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    model.eval()
    total, correct = 0.0, 0
    with torch.no_grad():
        for x, y in DataLoader(test, batch_size=256):
            out = model(x)
            total += F.cross_entropy(out, y).item() * len(x)
            correct += (out.argmax(1) == y).sum().item()
    print(f"epoch {epoch}: test loss {total / len(test):.4f}, accuracy {correct / len(test):.4f}")
