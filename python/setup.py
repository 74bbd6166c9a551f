"""Build kelp._kelp against libkelp-worker.so, which pkg-config finds as kelp-worker."""

import shlex
import subprocess
import sys

from setuptools import Extension, setup


def pkg_config(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["pkg-config", *arguments, "kelp-worker"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"kelp: {error}; install kelp-dev (or cmake --install build/release), and pkg-config, "
                 "with PKG_CONFIG_PATH naming the folder of kelp-worker.pc if it is not a usual one")


# Where the library lies is where the loader looks for it, unless it looks there anyway.
libdir = pkg_config("--variable=libdir")
rpath = [] if libdir.startswith("/usr/lib") else [f"-Wl,-rpath,{libdir}"]

setup(
    version=pkg_config("--modversion"),
    ext_modules=[
        Extension(
            "kelp._kelp",
            ["kelp/_kelp.c"],
            py_limited_api=True,
            extra_compile_args=["-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden"]
            + shlex.split(pkg_config("--cflags")),
            extra_link_args=shlex.split(pkg_config("--libs")) + rpath,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
