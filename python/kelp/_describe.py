"""Describes a script's job before it starts: the keys of its job file, and the initial weights."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

JOB = "job.yaml"
WEIGHTS = "init.safetensors"


def wanted() -> bool:
    """Whether this process must describe the job and then end."""
    return "KELP_DESCRIBE" in os.environ


def text_of(value: object) -> str:
    """A value in the notation of a job file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(text_of(item) for item in value) + "]"
    return str(value)


def write(keys: Mapping[str, str], weights: Mapping[str, NDArray[Any]]) -> None:
    """Write ``job.yaml`` and the weights, as ``init.safetensors``, into the folder that ``KELP_DESCRIBE`` names."""
    folder = os.environ["KELP_DESCRIBE"]
    if weights:
        _write_weights(os.path.join(folder, WEIGHTS), weights)
        keys = {**keys, "model.init": WEIGHTS}
    with open(os.path.join(folder, JOB), "w", encoding="utf-8") as file:
        file.write(_yaml(keys))


def _yaml(keys: Mapping[str, str]) -> str:
    plain = [f"{key}: {_scalar(value)}\n" for key, value in keys.items() if "." not in key]
    sections: dict[str, list[str]] = {}
    for key, value in keys.items():
        section, dot, rest = key.partition(".")
        if dot:
            sections.setdefault(section, []).append(f"  {rest}: {_scalar(value)}\n")
    return "".join(plain) + "".join(f"{name}:\n{''.join(lines)}" for name, lines in sections.items())


def _scalar(value: str) -> str:
    """Lists stay lists; text that YAML could read as another type is quoted."""
    plain = value and all(c.isalnum() or c in "._-+/" for c in value) and value[0] not in "-"
    return value if value.startswith("[") or plain else json.dumps(value, ensure_ascii=False)


def _write_weights(path: str, weights: Mapping[str, NDArray[Any]]) -> None:
    header: dict[str, object] = {}
    end = 0
    for name, array in weights.items():
        begin, end = end, end + 4 * math.prod(array.shape)
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in weights.values():
            file.write(np.ascontiguousarray(array, dtype="<f4").data)
