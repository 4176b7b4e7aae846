"""Entry point for `ray job submit -- python jobs/index.py CONFIG [--set KEY=VALUE]`."""

import sys

from kohaku_ray.cli import main

if __name__ == "__main__":
    sys.exit(main(["index", *sys.argv[1:]]))
