"""The only package that imports ray: jobs, actors, ledger and model serving."""

import logging
import warnings

# In a notebook without ipywidgets, both would ask for them at the import: nothing here uses them.
logging.getLogger("ray.widgets.util").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message="IProgress not found")

NAMESPACE = "kohaku_ray"
"""Ray namespace of every named actor."""
