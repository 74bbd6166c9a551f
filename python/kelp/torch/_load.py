"""kelp.torch.load: the weights of a run in a module."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import tempfile
from typing import Any, Union

import torch
from torch import nn

from ._module import buffers_of

_MODEL = "model.safetensors"
_HEADER_MAX = 1 << 26  # bytes


def load(model: nn.Module, path: Union[str, os.PathLike[str]]) -> nn.Module:
    """Give a module the weights of a run, buffers such as running statistics included.

    Args:
        model: a module like the one that was trained. Its tensors are written in place, on their devices
        path: the folder of a run, of a checkpoint, or a safetensors file such as ``model.safetensors``. Of a run
            without a final model it is the newest checkpoint. Checkpoints need the program ``kelp`` on ``PATH``

    Returns:
        the module; it stays in the mode, of training or evaluation, that it is in

    Raises:
        ValueError: the names or shapes are not those of the module; one line says which. Nothing is loaded then
    """
    given = os.fspath(path)
    if not os.path.isdir(given):
        return _load_file(model, given, given)
    final = os.path.join(given, _MODEL)
    if os.path.exists(final):
        return _load_file(model, final, final)
    with tempfile.TemporaryDirectory() as folder:
        exported = os.path.join(folder, _MODEL)
        _export(given, exported)
        return _load_file(model, exported, given)


def _export(path: str, exported: str) -> None:
    kelp = shutil.which("kelp")
    if kelp is None:
        raise ValueError(f"{path} has no {_MODEL}, and there is no program kelp on PATH to read its checkpoint with")
    alone = os.path.exists(os.path.join(path, "manifest.json"))
    which = [os.path.abspath(path)] if alone else ["newest", "--run", path]
    done = subprocess.run([kelp, "checkpoint", "export", *which, exported], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError((done.stderr.strip().splitlines() or [f"{path}: its checkpoint cannot be read"])[-1])


def _tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.numel() > 0}
    return {**parameters, **{buffer.name: buffer.value for buffer in buffers_of(model)}}


def _load_file(model: nn.Module, file: str, said: str) -> nn.Module:
    tensors = _tensors_of(model)
    with open(file, "rb") as stream:
        header, begin = _read_header(stream, said)
        _check(tensors, header, said)
        if begin + max(entry["data_offsets"][1] for entry in header.values()) > os.fstat(stream.fileno()).st_size:
            raise ValueError(f"{said}: is cut off")
        with torch.no_grad():
            for name, tensor in tensors.items():
                stream.seek(begin + header[name]["data_offsets"][0])
                values = bytearray(stream.read(4 * tensor.numel()))
                tensor.copy_(torch.frombuffer(values, dtype=torch.float32).view(tensor.shape))
    return model


def _read_header(stream: Any, said: str) -> tuple[dict[str, Any], int]:
    length = stream.read(8)
    size = struct.unpack("<Q", length)[0] if len(length) == 8 else 0
    if not 0 < size <= _HEADER_MAX:
        raise ValueError(f"{said}: is not a safetensors file")
    try:
        header = json.loads(stream.read(size))
    except ValueError:
        raise ValueError(f"{said}: is not a safetensors file") from None
    if not isinstance(header, dict):
        raise ValueError(f"{said}: is not a safetensors file")
    header.pop("__metadata__", None)
    return header, 8 + size


def _check(tensors: dict[str, torch.Tensor], header: dict[str, Any], said: str) -> None:
    for name, tensor in tensors.items():
        if name not in header:
            raise ValueError(f"{said}: has no tensor {name}, which the module has")
        shape, dtype = header[name].get("shape"), header[name].get("dtype")
        if shape != list(tensor.shape):
            raise ValueError(f"{said}: tensor {name} has shape {shape}; the module's has {list(tensor.shape)}")
        if dtype != "F32":
            raise ValueError(f"{said}: tensor {name} is of {dtype}; those of runs are of F32")
    for name in header:
        if name not in tensors:
            raise ValueError(f"{said}: has a tensor {name}, which the module has not")
