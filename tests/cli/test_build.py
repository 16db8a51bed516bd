#!/usr/bin/env python3
"""What configuring says where `make` shows it: how streamed weights will be read, once.

    test_build.py BUILD/hayate
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def configure(folder, *more, **environment):
    done = subprocess.run(["cmake", "-S", SOURCE, "-B", folder, *more], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, env={**os.environ, **environment}, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


if not shutil.which("cmake") or not (SOURCE / "CMakeLists.txt").exists():
    print("cmake is not installed")
    sys.exit(77)
with tempfile.TemporaryDirectory() as work:
    build = os.path.join(work, "build")
    first = configure(build)
    streamed, *kernels = first.splitlines(keepends=True)
    assert streamed.startswith("streamed weights are read by "), first
    assert len(kernels) <= 1 and all(k.startswith("CUDA kernels are ") for k in kernels), first
    assert configure(build) == ""
    assert configure(build, "-DHAYATE_SAID_STREAMED=otherwise") == streamed  # what was installed or removed since
