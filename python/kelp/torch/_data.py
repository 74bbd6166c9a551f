"""Samples for lanes: from map-style datasets, computed here or ahead of time in data processes.

The result for a piece of a lane depends only on the dataset, the piece's sample numbers and the lane's seed. Random
numbers are seeded for each piece, so the result does not depend on the process that computed it.

Data processes are children of multiprocessing's fork server, which knows no connection of the worker: a plain fork
would keep the sockets of a killed worker open, and hide its end. Each has a socket pair to the worker. It computes one
piece at a time and ends when the socket does, whatever it is doing.
"""

from __future__ import annotations

import hashlib
import mmap
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.reduction
import os
import pickle
import random
import select
import signal
import socket
import struct
import tempfile
import threading
import traceback
from typing import Any, Callable, Iterable, NoReturn, Optional, Sequence

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from kelp._kelp import FailedError

from ._bits import mix, seed_lane

__all__ = ["PARTS", "Loader"]

PARTS = ("train", "val", "test")

Collate = Callable[[list[Any]], Any]
Key = tuple[str, int, bytes]
Array = numpy.ndarray[Any, Any]

# Samples of a split that fingerprint() reads, if it cannot read all.
_FINGERPRINT_SAMPLES = 16
# Data processes that do not end with their socket are killed after so many seconds.
_END_S = 2.0
_DATA = 0x64617461  # what samples draw is not what the module draws
_NAME = "kelp data "
_RUNS_SCRIPT = 78  # exit status of a data process that was about to start data processes
_torch: Any = torch  # some of its functions have no types


class Loader:
    r"""The samples of a job: up to three map-style datasets.

    Args:
        train, val, test: datasets with ``__len__`` and ``__getitem__``; ``None``: there are no such samples.
        collate_fn: makes a batch of a list of samples; ``None``: ``torch.utils.data.default_collate``.
        workers: number of data processes to start. They fetch the pieces that :meth:`expect` names. With data
            processes the datasets and ``collate_fn`` must be picklable, and the script must be guarded by
            ``if __name__ == "__main__":``.

    Create it before the worker joins its job, and close it (:meth:`close`) when the worker ends.
    """

    def __init__(
        self,
        train: Dataset[Any],
        val: Optional[Dataset[Any]] = None,
        test: Optional[Dataset[Any]] = None,
        collate_fn: Optional[Collate] = None,
        workers: int = 0,
    ) -> None:
        self._sets = dict(zip(PARTS, (train, val, test)))
        self._lengths = {part: _length(part, dataset) for part, dataset in self._sets.items()}
        if self._lengths["train"] == 0:
            raise ValueError("train has no samples: there is nothing to learn from")
        if collate_fn is not None and not callable(collate_fn):
            raise TypeError(f"collate_fn is a {type(collate_fn).__name__}; it takes a list of samples")
        if not isinstance(workers, int) or workers < 0:
            raise ValueError(f"workers={workers!r}; the number of data processes, 0 or more")
        self._collate: Collate = default_collate if collate_fn is None else collate_fn
        self._tensors: dict[str, _Tensors] = {}
        if collate_fn is None:
            self._tensors = {
                part: tensors for part, dataset in self._sets.items() if (tensors := _tensors_of(dataset)) is not None
            }
        self._expected: dict[Key, _Piece] = {}
        self._processes: list[_Process] = []
        self._poll = select.poll()
        self._server: Optional[int] = None
        if any(part not in self._tensors for part, length in self._lengths.items() if length > 0):
            self._start(workers)

    def lengths(self) -> tuple[int, int, int]:
        """The number of samples in the training, validation and test split."""
        return self._lengths["train"], self._lengths["val"], self._lengths["test"]

    def fingerprint(self) -> int:
        """A 64-bit hash of the datasets' contents.

        It covers all of a ``TensorDataset``. Of other datasets it covers the length, the indices of a ``Subset``, and
        some samples, which are read with fixed seeds.
        """
        states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
        digest = hashlib.blake2b(digest_size=8)
        for part, dataset in self._sets.items():
            length = self._lengths[part]
            digest.update(f"{part} {length};".encode())
            if dataset is None or length == 0:
                continue
            if type(dataset) is TensorDataset:
                _add_content(digest, dataset.tensors)
                continue
            if type(dataset) is Subset:
                _add_content(digest, numpy.asarray(dataset.indices))
            last = _FINGERPRINT_SAMPLES - 1
            for index in sorted({number * (length - 1) // last for number in range(_FINGERPRINT_SAMPLES)}):
                seed_lane(mix(0, index))
                _add_content(digest, dataset[index])
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])
        return int.from_bytes(digest.digest(), "little")

    def fetch(self, part: str, indices: Any, seed: int) -> Any:
        """The batch of these samples, as ``collate_fn`` returns it.

        It comes from a data process if :meth:`expect` named it and one has begun it; otherwise it is computed here. The
        state of the random number generators is undefined afterwards: seed them for the lane.

        Args:
            part: ``"train"``, ``"val"`` or ``"test"``.
            indices: numbers of samples in their dataset, int64: an array, a tensor or a list.
            seed: the lane's 64 bits.
        """
        numbers = numpy.asarray(indices, dtype=numpy.int64)
        tensors = self._tensors.get(part)
        if tensors is not None:
            return tensors.rows(numbers)
        if not self._processes:
            return _compute(self._dataset(part), self._collate, numbers, seed)
        piece = self._expected.pop((part, seed, numbers.tobytes()), None)
        self._turn()
        if piece is None or piece.process is None and piece.result is None:
            return _compute(self._dataset(part), self._collate, numbers, seed)
        if piece.process is not None:
            self._receive(piece.process)
            self._turn()
        assert piece.result is not None
        return piece.result.value()

    def expect(self, part: str, pieces: Iterable[tuple[Any, int]]) -> None:
        """Name the next pieces of a split, in their order, each with its lane's seed.

        They replace the pieces that were named for that split before. Without data processes it does nothing.
        """
        if not self._processes or part in self._tensors:
            return
        before = {key: piece for key, piece in self._expected.items() if piece.part == part}
        for key in before:
            del self._expected[key]
        for indices, seed in pieces:
            numbers = numpy.asarray(indices, dtype=numpy.int64)
            key = (part, seed, numbers.tobytes())
            self._expected[key] = before.get(key) or _Piece(part, numbers, seed)
        self._turn()

    def close(self) -> None:
        """End the data processes. A second call does nothing."""
        processes, self._processes = self._processes, []
        self._expected.clear()
        for process in processes:
            process.socket.close()
        for process in processes:
            process.end()
        if self._server is not None:
            os.close(self._server)
            self._server = None

    def _dataset(self, part: str) -> Any:
        return self._sets[part]

    # ---- data processes --------------------------------------------------------------------------

    def _start(self, count: int) -> None:
        if count == 0:
            return
        if multiprocessing.current_process().name.startswith(_NAME):
            os._exit(_RUNS_SCRIPT)  # the worker reports it in one line
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "numpy"])
        # Only the worker handles Ctrl-C. The fork server and its children inherit the mask from the start.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with _Parcel((self._sets, self._collate)) as parcel, _ForkServer() as self._server:
                for number in range(count):
                    self._processes.append(_Process(context, number, parcel.fd))
            for process in self._processes:
                self._poll.register(process.socket, select.POLLIN)
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _turn(self) -> None:
        """Take what is ready, and give processes without work the next pieces."""
        ready = {fd for fd, _ in self._poll.poll(0)}
        waiting = (piece for piece in self._expected.values() if piece.process is None and piece.result is None)
        for process in self._processes:
            if process.socket.fileno() in ready:
                self._receive(process)
            if process.ready and process.piece is None:
                piece = next(waiting, None)
                if piece is not None:
                    self._give(process, piece)

    def _give(self, process: _Process, piece: _Piece) -> None:
        settings = torch.get_num_threads(), _torch.are_deterministic_algorithms_enabled()
        process.piece, piece.process = piece, process
        try:
            _send(process.socket, (piece.part, piece.indices, piece.seed, settings))
        except OSError:
            self._lost(process)

    def _receive(self, process: _Process) -> None:
        """Wait for the result of the process's piece, or for the message that it has begun."""
        try:
            result: _Result = _receive(process.socket)
        except (EOFError, OSError):
            self._lost(process)
        piece, process.piece = process.piece, None
        if piece is None:
            result.value()
            process.ready = True
        else:
            piece.process, piece.result = None, result

    def _lost(self, process: _Process) -> NoReturn:
        line, failed = process.how_it_ended(), process.failed()
        self.close()
        raise (FailedError(line) if failed else RuntimeError(line)) from None


def _counted(count: int, part: str) -> str:
    return f"{count} sample{'' if count == 1 else 's'} of {part}"


class _Piece:
    """A piece that has to be fetched, or was fetched."""

    __slots__ = ("part", "indices", "seed", "process", "result")

    def __init__(self, part: str, indices: Array, seed: int) -> None:
        self.part = part
        self.indices = indices
        self.seed = seed
        self.process: Optional[_Process] = None  # the process that computes it now
        self.result: Optional[_Result] = None

    def __str__(self) -> str:
        return _counted(len(self.indices), self.part)


class _Result:
    """A batch, or the exception that was raised instead."""

    def __init__(self, batch: Any = None, error: Optional[BaseException] = None, text: str = "") -> None:
        self.batch = batch
        self.error = error
        self.text = text

    def value(self) -> Any:
        if self.text:
            error = self.error if self.error is not None else RuntimeError(self.text.rstrip().splitlines()[-1])
            raise error from _RemoteTraceback(self.text)
        return self.batch


class _RemoteTraceback(Exception):
    """Shows the traceback of a data process above that of the exception."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


class _Process:
    """The worker's side of a data process."""

    def __init__(self, context: Any, number: int, parcel: int) -> None:
        self.number = number
        self.ready = False
        self.piece: Optional[_Piece] = None
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = context.Process(
                target=_serve, args=(theirs, _Inherited(parcel), number), name=f"{_NAME}{number}", daemon=True
            )
            try:
                self.process.start()
            except BaseException:
                self.socket.close()
                raise

    def how_it_ended(self) -> str:
        self.process.join(_END_S)
        status = self.process.exitcode
        line = f"data process {self.number} (pid {self.process.pid})"
        if status == _RUNS_SCRIPT:
            return f'{line} has run the script again: all that starts work belongs behind if __name__ == "__main__":'
        if status is None:
            line += " closed its socket"
        elif status < 0:
            name = signal.Signals(-status).name if -status in list(signal.Signals) else f"signal {-status}"
            line += f" was killed by {name}"
        else:
            line += f" ended with exit status {status}"
        if not self.ready:
            return f"{line} before it began"
        return line if self.piece is None else f"{line} while it fetched {self.piece}"

    def failed(self) -> bool:
        """Whether restarting the worker may help. It does not if the script cannot be imported."""
        return self.ready or self.process.exitcode is None or self.process.exitcode < 0

    def end(self) -> None:
        self.process.join(_END_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()


class _ForkServer:
    """A fork server for the processes that are started inside the ``with`` block; its socket's folder is then removed.

    The folder of multiprocessing's own server would stay in TMPDIR when the worker is killed. Processes that the script
    starts later get another server.
    """

    def __enter__(self) -> int:
        self._folder = tempfile.TemporaryDirectory(prefix="kelp-data-")
        self._forget()
        config: dict[str, Any] = vars(multiprocessing.current_process())["_config"]
        before = config.get("tempdir")
        config["tempdir"] = self._folder.name
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            config["tempdir"] = before
        alive: int = self._server()._forkserver_alive_fd
        return alive  # the server ends when it is closed

    def __exit__(self, *exception: object) -> None:
        self._forget()
        self._folder.cleanup()

    @staticmethod
    def _server() -> Any:
        return vars(multiprocessing.forkserver)["_forkserver"]

    def _forget(self) -> None:
        self._server()._forkserver_pid = None


class _Inherited:
    """A file descriptor that is passed to a child when it starts."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _detach, (multiprocessing.reduction.DupFd(self.fd),)


def _detach(handle: Any) -> int:
    return int(handle.detach())


# ---- in a data process ---------------------------------------------------------------------------


def _serve(connection: socket.socket, parcel: int, number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    where = f"data process {number} (pid {os.getpid()})"
    try:
        sets, collate = _Parcel.read(parcel)
    except Exception as error:
        _send(connection, _failure(f"{where}, which reads the datasets", error))
        return
    before: Any = None
    try:
        _send(connection, _Result())
        while True:
            part, indices, seed, settings = _receive(connection)
            if settings != before:
                before = settings
                torch.set_num_threads(settings[0])
                _torch.use_deterministic_algorithms(settings[1])
            try:
                result = _Result(_compute(sets[part], collate, indices, seed))
            except Exception as error:
                result = _failure(f"{where}, which fetches {_counted(len(indices), part)}", error)
            _send(connection, result)
    except (EOFError, OSError):
        pass  # the worker has ended


def _end_with(connection: socket.socket) -> None:
    """End when the worker ends, even in the middle of a sample."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


def _failure(where: str, error: Exception) -> _Result:
    text = f"{where}:\n{''.join(traceback.format_exception(type(error), error, error.__traceback__))}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # the exception cannot be pickled: send its text
        return _Result(None, None, text)
    return _Result(None, error, text)


# ---- a piece -------------------------------------------------------------------------------------


def _compute(dataset: Any, collate: Collate, indices: Array, seed: int) -> Any:
    seed_lane(mix(seed, _DATA))
    return collate([dataset[index] for index in indices.tolist()])


class _Tensors:
    """Selects all rows of tensors at once, with the same result as a TensorDataset and default_collate row by row."""

    def __init__(self, tensors: Sequence[torch.Tensor], subset: Optional[torch.Tensor]) -> None:
        self.tensors = tensors
        self.subset = subset

    def rows(self, numbers: Array) -> list[torch.Tensor]:
        indices = torch.from_numpy(numbers)
        if self.subset is not None:
            indices = self.subset[indices]
        return [tensor.index_select(0, indices) for tensor in self.tensors]


def _tensors_of(dataset: Optional[Dataset[Any]]) -> Optional[_Tensors]:
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        return _Tensors(dataset.dataset.tensors, torch.as_tensor(dataset.indices, dtype=torch.int64))
    return _Tensors(dataset.tensors, None) if type(dataset) is TensorDataset else None


def _length(part: str, dataset: Any) -> int:
    if dataset is None:
        if part == "train":
            raise TypeError("train is None; it is the dataset to learn from")
        return 0
    if isinstance(dataset, DataLoader):
        raise TypeError(f"{part} is a DataLoader; give its dataset, which Kelp cuts into batches itself")
    if isinstance(dataset, IterableDataset):
        raise TypeError(f"{part} is an IterableDataset; it needs samples by number: __getitem__ and __len__")
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(f"{part} is a {type(dataset).__name__}; it needs __getitem__ and __len__")
    return len(dataset)


def _add_content(digest: Any, value: Any) -> None:
    """Add a sample's type, shape and bytes to the digest; for unknown types only the type."""
    digest.update(f"{type(value).__name__}(".encode())
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value if value.layout is torch.strided else value.to_dense()).contiguous()
        digest.update(f"{value.dtype} {tuple(value.shape)} ".encode())
        digest.update(_bytes_of(value))
    elif isinstance(value, numpy.ndarray):
        digest.update(f"{value.dtype} {value.shape} ".encode())
        digest.update(numpy.ascontiguousarray(value).tobytes())
    elif isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        digest.update(repr(value).encode())
    elif isinstance(value, dict):
        for key, item in value.items():
            _add_content(digest, key)
            _add_content(digest, item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _add_content(digest, item)
    elif hasattr(value, "tobytes"):  # numpy's numbers, images
        digest.update(value.tobytes())
    digest.update(b")")


# ---- objects through a socket, and in a file -----------------------------------------------------


def _bytes_of(tensor: torch.Tensor) -> Array:
    """The memory from a tensor's first element to its last."""
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    flat: Array = tensor.as_strided((span,), (1,)).view(torch.uint8).numpy()
    return flat


def _tensor_from(
    buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).as_strided(shape, strides)


class _Pickler(pickle.Pickler):
    """Pickles CPU tensors as buffers outside the pickle, with their strides."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.device.type != "cpu":
            return NotImplemented
        if value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg():
            return NotImplemented
        buffer = pickle.PickleBuffer(_bytes_of(value).data)
        return _tensor_from, (buffer, value.dtype, tuple(value.shape), value.stride())


def _dump(value: Any) -> list[Any]:
    """The value as a header, a pickle and the pickle's buffers."""
    buffers: list[pickle.PickleBuffer] = []
    chunks = _Chunks()
    _Pickler(chunks, protocol=5, buffer_callback=buffers.append).dump(value)
    parts = [b"".join(chunks), *(buffer.raw() for buffer in buffers)]
    return [struct.pack(f"<{len(parts) + 1}Q", len(parts), *(len(part) for part in parts)), *parts]


class _Chunks(list[bytes]):
    def write(self, chunk: bytes) -> int:
        self.append(bytes(chunk))
        return len(chunk)


def _send(connection: socket.socket, value: Any) -> None:
    header, *parts = _dump(value)
    if sum(len(part) for part in parts) < 65536:
        connection.sendall(b"".join([header, *parts]))
        return
    connection.sendall(header)
    for part in parts:
        connection.sendall(part)


def _receive(connection: socket.socket) -> Any:
    (count,) = struct.unpack("<Q", _read(connection, 8))
    lengths = struct.unpack(f"<{count}Q", _read(connection, 8 * count))
    parts = [_read(connection, length) for length in lengths]
    return pickle.loads(parts[0], buffers=parts[1:])


def _read(connection: socket.socket, length: int) -> Any:
    """Receive ``length`` bytes into memory that torch has aligned."""
    buffer = torch.empty(length, dtype=torch.uint8).numpy()
    view, done = memoryview(buffer), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if count == 0:
            raise EOFError
        done += count
    return buffer


class _Parcel:
    """Objects in an unnamed file that all data processes map, so that large tensors are in memory only once."""

    def __init__(self, value: Any) -> None:
        try:
            parts = _dump(value)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ValueError(
                f"workers= needs datasets and a collate_fn that can be pickled: {error}; define what it names at the "
                "top level of a module, or use workers=0"
            ) from None
        self.fd = os.memfd_create("kelp data", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(self.fd), "wb") as file:
                for part in parts:
                    file.seek(-file.tell() % 64, os.SEEK_CUR)
                    file.write(part)
                file.truncate()
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> _Parcel:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.fd)

    @staticmethod
    def read(fd: int) -> Any:
        memory = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        os.close(fd)
        (count,) = struct.unpack_from("<Q", memory)
        at, parts = 8 * (count + 1), []
        for length in struct.unpack_from(f"<{count}Q", memory, 8):
            at += -at % 64
            parts.append(memoryview(memory)[at : at + length])
            at += length
        return pickle.loads(parts[0], buffers=parts[1:])
