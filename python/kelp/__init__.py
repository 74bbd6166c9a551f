"""Kelp trains on a cluster whose workers may join, leave or fail at any time; the result always has the same bits.

:class:`kelp.Worker` computes gradients with numpy, ``kelp.torch.Worker`` with PyTorch.
"""

from kelp import _process
from kelp._kelp import FailedError, InvalidError, version
from kelp._worker import Batch, Init, Worker, constant, fingerprint, normal, uniform

__all__ = [
    "Batch",
    "FailedError",
    "Init",
    "InvalidError",
    "Worker",
    "constant",
    "fingerprint",
    "normal",
    "uniform",
]
__version__ = version()

if _process.is_worker():
    _process.install()
