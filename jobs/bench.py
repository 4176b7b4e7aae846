"""Entry point for `ray job submit -- python jobs/bench.py CONFIG [--set KEY=VALUE] [--replicas 1,2,4]`."""

import sys

from kohaku_ray.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
