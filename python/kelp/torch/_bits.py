"""What the bits of a gradient depend on: settings of torch, random numbers, processor and libraries."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import random
import re
from typing import Any, Optional

import numpy
import torch

__all__ = ["compute_kind", "mix", "prepare", "seed_lane"]

# The limit of kelp_worker_plan_compute().
_KIND_MAX = 127
_MASK = 2**64 - 1
_torch: Any = torch  # some of its functions have no types


def prepare(threads: int) -> None:
    """Makes torch compute the same bits each time: deterministic algorithms, and this many threads.

    Call it before the module computes anything. An operation without a deterministic form raises ``RuntimeError`` then.
    """
    if threads < 1:
        raise ValueError(f"{threads} threads; at least 1")
    torch.set_num_threads(threads)
    _torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # cuBLAS reads it at its start; without it torch refuses products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


# ---- random numbers ------------------------------------------------------------------------------


def mix(seed: int, number: int) -> int:
    """64 bits from 64 bits and a number: SplitMix64, with another stream for each number.

    A lane's seed comes from Philox, keyed by the job's seed, the step and the lane. From it comes that of its data.
    """
    h = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK
    return h ^ (h >> 31)


_default_seed = torch.default_generator.manual_seed
_numpy_seed = numpy.random.seed
_python_generator: Any = getattr(random.seed, "__self__")
_python_seed = super(random.Random, _python_generator).seed


def seed_lane(seed: int) -> None:
    """Seeds the default generators of torch, ``random`` and numpy, and those of devices in use, with 64 bits."""
    # torch and numpy both use a 32-bit Mersenne Twister: with the same seed they would give the same numbers.
    _default_seed(seed & 0xFFFFFFFF)
    _numpy_seed(seed >> 32)
    _python_seed(seed)  # like random.seed(), which first examines the seed's type
    _python_generator.gauss_next = None
    if _torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


# ---- processor and libraries ---------------------------------------------------------------------


def compute_kind(device: Optional[torch.device] = None) -> str:
    """Names what the bits depend on besides weights and samples, in at most 127 printable characters.

    Call it after :func:`prepare`: the number of threads is part of it.
    """
    parts = [
        f"torch {torch.__version__}",
        platform.machine(),
        f"aten {_aten_capability()}",
        _blas(),
        _onednn(),
        f"threads {torch.get_num_threads()}",
    ]
    if device is not None and device.type != "cpu":
        parts.append(_device(device))
    kind = re.sub(r"[^\x20-\x7e]", "?", ", ".join(parts))
    if len(kind) > _KIND_MAX:
        digest = hashlib.blake2b(kind.encode(), digest_size=8).hexdigest()
        kind = f"{kind[:_KIND_MAX - 17]} {digest}"
    return kind


def _configuration(pattern: str) -> Optional[str]:
    found = re.search(pattern, _torch.__config__.show())
    return found.group(1) if found else None


def _aten_capability() -> str:
    return (_configuration(r"CPU capability usage: (.+)") or "unknown").strip().lower()


def _blas() -> str:
    """The library that multiplies matrices, and the kind of processor core for which it chose its code."""
    version = _configuration(r"Math Kernel Library Version (\S+)")
    if version is not None:
        return f"mkl {version} {_processor()}"
    # Under the name by which torch finds it: Debian's alternatives may make libblas.so.3 OpenBLAS.
    for path in ("libblas.so.3", "libopenblas.so.0"):
        library = _loaded(path)
        if library is None or not hasattr(library, "openblas_get_corename"):
            continue
        library.openblas_get_corename.restype = ctypes.c_char_p
        library.openblas_get_config.restype = ctypes.c_char_p
        version = library.openblas_get_config().decode().split()[1]
        return f"openblas {version} {library.openblas_get_corename().decode()}"
    name = _configuration(r"BLAS_INFO=(\w+)") or "unknown"
    return f"blas {name} {_processor()}"


# Values of dnnl_cpu_isa_t on which oneDNN 2 and 3 agree; others are shown as a number.
_ISA = {0x1: "sse41", 0x3: "avx", 0x7: "avx2", 0x27: "avx512", 0x67: "avx512-vnni", 0xE7: "avx512-bf16"}


def _onednn() -> str:
    if not _torch.backends.mkldnn.is_available():
        return "no onednn"
    version = _configuration(r"MKL-DNN v(\S+)") or "unknown"
    for path in ("libdnnl.so.2", "libdnnl.so.3", "libtorch_cpu.so"):
        library = _loaded(path)
        if library is not None and hasattr(library, "dnnl_get_effective_cpu_isa"):
            isa = int(library.dnnl_get_effective_cpu_isa())
            return f"onednn {version} {_ISA.get(isa, hex(isa))}"
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", ""))
    return f"onednn {version} {_processor()} {limit}".rstrip()


def _loaded(name: str) -> Optional[ctypes.CDLL]:
    """The library if this process has loaded it: another copy would tell nothing about torch."""
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def _processor() -> str:
    """What libraries choose their code by, for those that do not tell which one they chose."""
    words: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                words.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    if "cpu family" not in words:
        return platform.processor() or "unknown"
    return f"{words.get('vendor_id', '')}-{words['cpu family']}-{words.get('model', '')}"


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    properties = torch.cuda.get_device_properties(device)
    return (
        f"{properties.name} sm{properties.major}{properties.minor} cuda {torch.version.cuda} "
        f"cudnn {_torch.backends.cudnn.version()}"
    )
