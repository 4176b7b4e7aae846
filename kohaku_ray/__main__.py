"""Run the command line by ``python -m kohaku_ray``."""

import sys

from kohaku_ray.cli import main

sys.exit(main())
