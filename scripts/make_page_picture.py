"""Make docs/images/run_page.png: the first screen of a run's page, drawn by Chromium.

kohaku-ray index demo
python scripts/make_page_picture.py kohaku_ray/sample/bundles/Qwen2.5-Coder-1.5B.zip --index runs/demo/index
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kohaku_ray.answering.bundle import replay_bundle
from kohaku_ray.cli import main as kohaku_ray

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "run_page.png"
SIZE = "1180,860"


def main() -> int:
    """Write the run's page anew and take its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a finished run's directory, or a bundle of one run, which is made again")
    parser.add_argument("--index", help="the index of a bundle that has none")
    given = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium on PATH: install it, or name it by CHROMIUM", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        page, run = Path(folder, "report.html"), given.run
        if run.endswith(".zip"):
            os.mkdir(f"{folder}/replay")
            replayed = replay_bundle(run, given.index, f"{folder}/replay")
            run = str(Path(folder, "replay", "again").rename(Path(folder, replayed.name)))
            if given.index is not None:
                os.symlink(os.path.abspath(given.index), f"{run}/index")
        if code := kohaku_ray(["report", run, "-o", str(page)]):
            return code
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        taken = [chromium, *flags, f"--user-data-dir={folder}/profile", f"--screenshot={PICTURE}", page.as_uri()]
        return subprocess.run(taken, timeout=120).returncode


if __name__ == "__main__":
    sys.exit(main())
