"""The data sets of these examples, as map-style datasets.

The files are in a folder: the script's argument, or else KELP_DATA, or else ../shared/data next to Kelp's own folder.
"""

import csv
import datetime
import gzip
import os
import pathlib
import sys

import numpy
import torch
from torch.utils.data import Dataset, TensorDataset


def path_of(name):
    folders = [word for word in sys.argv[1:] if os.path.isdir(word)]
    folder = folders[0] if folders else os.environ.get("KELP_DATA")
    path = pathlib.Path(folder or pathlib.Path(__file__).resolve().parents[3] / "shared/data", name)
    if not path.exists():
        print(f"there is no {path}; give the folder of the data sets as an argument", file=sys.stderr)
        sys.exit(2)
    return path


def taxi_trips():
    """Six numbers of a New York taxi trip, and whether the tip was over 20 %: training and test samples.

    Trips with five passengers or more, of over four hours, of 100 miles or more, or for 1000 dollars or more are left
    out. Every tenth of the rest is a test sample.
    """
    inputs, targets = [], []
    with gzip.open(path_of("nyc-taxi/yellow_trips_train.csv.gz"), "rt", newline="") as file:
        for row in csv.DictReader(file):
            if not row["passenger_count"]:
                continue
            begin = datetime.datetime.fromisoformat(row["tpep_pickup_datetime"])
            seconds = (datetime.datetime.fromisoformat(row["tpep_dropoff_datetime"]) - begin).total_seconds()
            passengers, distance = float(row["passenger_count"]), float(row["trip_distance"])
            fare, tip = float(row["fare_amount"]), float(row["tip_amount"])
            if passengers < 5 and 0 <= seconds <= 14400 and distance < 100 and fare < 1000:
                inputs.append([passengers, distance, fare, seconds, begin.hour, begin.weekday()])
                targets.append([tip > 0.2 * fare])
    x, y = torch.tensor(inputs), torch.tensor(targets, dtype=torch.float32)
    test = torch.arange(len(x)) % 10 == 9
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


class Images(Dataset):
    """Pictures and classes in the format of MNIST."""

    def __init__(self, folder, part, mean, std, limit=None):
        with gzip.open(path_of(f"{folder}/{part}-images-idx3-ubyte.gz")) as file:
            pixels = numpy.frombuffer(file.read(), dtype=numpy.uint8, offset=16)
        with gzip.open(path_of(f"{folder}/{part}-labels-idx1-ubyte.gz")) as file:
            classes = numpy.frombuffer(file.read(), dtype=numpy.uint8, offset=8)
        self.images = torch.tensor(pixels).reshape(-1, 1, 28, 28)[:limit]
        self.classes = torch.tensor(classes, dtype=torch.int64)[:limit]
        self.mean, self.std = mean, std

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return (self.images[index] / 255 - self.mean) / self.std, self.classes[index]


class Windows(Dataset):
    """Windows of ETTh1's oil temperature: hours that a model sees, and the hours after them."""

    PARTS = {"train": (0, 8640), "val": (8640, 11520), "test": (11520, 14400)}

    def __init__(self, part, seen, ahead):
        with open(path_of("ett/ETTh1.csv"), newline="", encoding="ascii") as file:
            series = numpy.array([float(row["OT"]) for row in csv.DictReader(file)])
        train = series[: self.PARTS["train"][1]]
        first, end = self.PARTS[part]
        scaled = (series - train.mean()) / train.std()
        self.series = torch.tensor(scaled[max(0, first - seen) : end], dtype=torch.float32)
        self.seen, self.ahead = seen, ahead

    def __len__(self):
        return len(self.series) - self.seen - self.ahead + 1

    def __getitem__(self, index):
        middle = index + self.seen
        return self.series[index:middle], self.series[middle : middle + self.ahead]
