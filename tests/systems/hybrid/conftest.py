"""Lets the tests here import ``inprocess``, which stands one directory up."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
