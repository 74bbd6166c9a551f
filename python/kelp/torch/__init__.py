"""PyTorch on Kelp: keep the module, the loss and the loop."""

from kelp.torch._worker import Batch, Worker, train

__all__ = ["Batch", "Worker", "train"]
