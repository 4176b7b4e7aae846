"""Entry point for `ray job submit -- python jobs/sweep.py SWEEP [--base CONFIG] [--set KEY=VALUE]`."""

import sys

from kohaku_ray.cli import main

if __name__ == "__main__":
    sys.exit(main(["sweep", *sys.argv[1:]]))
