"""Entry point for `ray job submit -- python jobs/vote.py A.csv B.csv -o OUT.csv [--strategy S]`."""

import sys

from kohaku_ray.cli import main

if __name__ == "__main__":
    sys.exit(main(["vote", *sys.argv[1:]]))
