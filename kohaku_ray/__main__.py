"""``python -m kohaku_ray``: the command line."""

import sys

from kohaku_ray.cli import main

sys.exit(main())
