"""Make a virtual environment with uv in it: ``python scripts/make_environment.py .venv``.

A Python that the project runs on makes it itself; any other one only installs uv for a moment, which finds such a
Python on the machine or brings one. ``make setup`` begins with this, so it is written for every Python 3.
"""

import os
import shutil
import subprocess
import sys
import tempfile

LEAST, BELOW = (3, 11), (3, 15)


def is_supported(version: tuple) -> bool:
    """Whether the project runs on a Python."""
    return LEAST <= tuple(version[:2]) < BELOW


def make_environment(target: str, version: tuple) -> None:
    """Make the environment, unless it is there; raises CalledProcessError or OSError where no Python is to be had."""
    python = os.path.join(target, "bin", "python")
    if is_supported(version):
        if not os.path.exists(python):
            subprocess.run([sys.executable, "-m", "venv", target], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "uv"], check=True)
        return
    with tempfile.TemporaryDirectory() as room:
        uv = shutil.which("uv")
        if uv is None:
            subprocess.run([sys.executable, "-m", "venv", room], check=True)
            uv = os.path.join(room, "bin", "uv")
            subprocess.run([os.path.join(room, "bin", "python"), "-m", "pip", "install", "--quiet", "uv"], check=True)
        if not os.path.exists(python):
            wanted = ">={}.{},<{}.{}".format(*LEAST, *BELOW)
            subprocess.run([uv, "venv", "--quiet", "--python", wanted, target], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "uv"], check=True)


if __name__ == "__main__":
    try:
        make_environment(sys.argv[1], sys.version_info)
    except (OSError, subprocess.CalledProcessError) as error:
        here = "Python {}.{} is here".format(*sys.version_info)
        runs = "kohaku_ray runs on {}.{} to {}.{}".format(*LEAST, BELOW[0], BELOW[1] - 1)
        way_out = "install one of these and name it, as in make PYTHON=python3.12 setup"
        sys.exit(f"{here} ({error}): {runs}; {way_out}")
