"""Entry point for `ray job submit -- python jobs/answer.py CONFIG [--set KEY=VALUE]`."""

import sys

from kohaku_ray.cli import main

if __name__ == "__main__":
    sys.exit(main(["answer", *sys.argv[1:]]))
