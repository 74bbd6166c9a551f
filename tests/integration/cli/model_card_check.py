"""A Kelp model in Python: the predictions of an mlp, from model.safetensors and rows alone.

usage: python3 model_card_check.py MODEL.safetensors ROWS.csv PREDICTIONS.csv torch|plain

Reads scales and numbers of categories out of the file's metadata, computes the model with PyTorch,
or in plain Python, and compares with what `kelp predict` wrote. Exit status 77: there is no PyTorch.
"""

import csv
import json
import struct
import sys


def read_model(path):
    """The metadata and the float32 tensors of a safetensors file, without its library."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            values = struct.unpack("<%df" % ((end - first) // 4), data[first:end])
            tensors[name] = (entry["shape"], list(values))
    return header["__metadata__"], tensors


def forward_torch(layers, rows):
    """fc1, ReLU, fc2, ... with PyTorch."""
    import torch

    x = torch.tensor(rows, dtype=torch.float32)
    for i, ((shape, weight), (_, bias)) in enumerate(layers):
        x = torch.nn.functional.linear(x, torch.tensor(weight).reshape(shape), torch.tensor(bias))
        x = torch.relu(x) if i + 1 < len(layers) else x
    return x.flatten().tolist()


def forward_plain(layers, rows):
    """The same with Python's own numbers."""
    results = []
    for x in rows:
        for i, ((shape, weight), (_, bias)) in enumerate(layers):
            width = shape[1]
            x = [
                sum(w * v for w, v in zip(weight[o * width : (o + 1) * width], x)) + bias[o]
                for o in range(shape[0])
            ]
            x = [max(v, 0.0) for v in x] if i + 1 < len(layers) else x
        results.append(x[0])
    return results


def main():
    model_path, rows_path, predictions_path, how = sys.argv[1:5]
    metadata, tensors = read_model(model_path)
    card = json.loads(metadata["kelp.model"])
    layers = []
    while "fc%d.weight" % (len(layers) + 1) in tensors:
        name = "fc%d" % (len(layers) + 1)
        layers.append((tensors[name + ".weight"], tensors[name + ".bias"]))
    with open(rows_path, newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    rows = [
        [(float(row[c["name"]]) - c["shift"]) / c["factor"] for c in card["inputs"]]
        for row in table
    ]
    target = card["targets"][0]
    try:
        outputs = (forward_torch if how == "torch" else forward_plain)(layers, rows)
    except ModuleNotFoundError:
        print("%s has no PyTorch" % sys.executable)
        return 77
    with open(predictions_path, newline="", encoding="utf-8") as file:
        predictions = [float(row[target["name"]]) for row in csv.DictReader(file)]
    worst = 0.0
    for output, prediction in zip(outputs, predictions):
        ours = output * target["factor"] + target["shift"]
        worst = max(worst, abs(ours - prediction) / max(1.0, abs(prediction)))
    print("%d predictions, off by %.2g at most" % (len(predictions), worst))
    return 0 if len(outputs) == len(predictions) > 0 and worst < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
