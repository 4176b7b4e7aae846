"""What vLLM's own worker processes are asked beside their work (``worker_extension_cls``)."""

from __future__ import annotations

from typing import Any


class EnergyProbe:
    """Mixed into a worker: reads the energy counter of the worker's own GPU."""

    def joules(self) -> float | None:
        """Energy that this GPU used since its driver was loaded; None where NVML does not say."""
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
