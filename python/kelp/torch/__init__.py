"""PyTorch on Kelp: keep the module, the loss and the loop."""

from kelp.torch._load import load
from kelp.torch._worker import Batch, Worker, train

__all__ = ["Batch", "Worker", "load", "train"]
