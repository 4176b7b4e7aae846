"""The extension of vLLM's worker processes (``worker_extension_cls``)."""

from __future__ import annotations

from typing import Any


class EnergyProbe:
    """Worker mixin that reads the energy counter of the worker's GPU."""

    def joules(self) -> float | None:
        """Return the energy this GPU has used since its driver was loaded, in joules; None if NVML does not tell."""
        import torch
        from vllm.third_party import pynvml as untyped

        pynvml: Any = untyped
        try:
            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000.0
        except pynvml.NVMLError:
            return None
