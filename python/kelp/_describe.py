"""What a script says of its job before there is one: its keys, and the weights to begin with."""

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
    """Is this process to describe the job, and then to end?"""
    return "KELP_DESCRIBE" in os.environ


def text_of(value: object) -> str:
    """A value as a job file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(text_of(item) for item in value) + "]"
    return str(value)


def write(keys: Mapping[str, str], weights: Mapping[str, NDArray[Any]]) -> None:
    """Write ``job.yaml``, and ``init.safetensors`` with the weights, into the folder that ``KELP_DESCRIBE`` names."""
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
    """Lists stay lists; what YAML might take for something else stands in quotation marks."""
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
