"""``python -m kohaku_ray.cli``."""

import sys

from kohaku_ray.cli import main

sys.exit(main())
