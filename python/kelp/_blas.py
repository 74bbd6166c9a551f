"""The BLAS that this process computes with."""

from __future__ import annotations

import ctypes
import os


class Blas:
    """The functions with which OpenBLAS describes itself."""

    def __init__(self, library: ctypes.CDLL, suffix: str) -> None:
        self._library = library
        self._suffix = suffix

    def _text(self, name: str) -> str:
        function = getattr(self._library, name + self._suffix)
        function.restype = ctypes.c_char_p
        return (function() or b"").decode()

    @property
    def name(self) -> str:
        """For example "OpenBLAS-0.3.21 Cooperlake"."""
        return "-".join(self._text("openblas_get_config").split()[:2]) + " " + self._text("openblas_get_corename")

    @property
    def threads(self) -> int:
        return int(getattr(self._library, "openblas_get_num_threads" + self._suffix)())

    @threads.setter
    def threads(self, count: int) -> None:
        getattr(self._library, "openblas_set_num_threads" + self._suffix)(ctypes.c_int(count))


def loaded() -> Blas | None:
    """The OpenBLAS that this process has loaded, or None."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "blas" in line}
    for path in sorted(paths, key=lambda path: ("openblas" not in os.path.basename(path), path)):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for suffix in ("", "64_"):
            if hasattr(library, "openblas_get_corename" + suffix):
                return Blas(library, suffix)
    return None
