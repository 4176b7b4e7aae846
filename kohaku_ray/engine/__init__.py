"""The only package that imports ray: jobs, actors, ledger and model serving."""

import logging
import warnings

# In a notebook without ipywidgets, both would ask for them at the import: nothing here uses them.
logging.getLogger("ray.widgets.util").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message="IProgress not found")

NAMESPACE = "kohaku_ray"
"""Ray namespace of every named actor."""

MOST_TASKS = 100_000
"""Tasks of an asyncio actor at once. Those of a batch's calls, of which a file has 50,000, wait for up to a day, and
what asks for progress or ends a job must not stand behind them."""
