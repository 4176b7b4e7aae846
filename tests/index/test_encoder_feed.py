"""How batches reach a GPU, on a double of one at torch's border: it computes on the CPU and records the calls."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.settings import EncoderConfig

TEXTS = [" ".join(f"water {number} flows" for number in range(n)) for n in range(1, 41)]
BATCH_TOKENS = 512


class GpuDouble:
    """Answers torch's calls for a GPU.

    Attributes:
        padding: The thread that made each tensor from numbers.
        moved: Whether each tensor that was moved to the GPU was pinned.
        events: When a pass was queued, and when somebody waited for it.
        passes: Passes so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sentence_transformers
        import torch

        self.changed = threading.Condition()
        self.padding, self.moved, self.events, self.passes = [], [], [], 0
        self.pinned, self.before_pass = [], lambda: None
        gpu, from_numpy, to = self, torch.from_numpy, torch.Tensor.to

        class Transformer(sentence_transformers.SentenceTransformer):
            def __init__(self, name, *, device, **settings):
                assert device == "cuda"
                super().__init__(name, device="cpu", **settings)

            @property
            def device(self):
                return torch.device("cuda", 0)

            def forward(self, features, **task):
                gpu.before_pass()
                gpu.passes += 1
                return super().forward(features, **task)

        def make(array):
            with gpu.changed:
                gpu.padding.append(threading.current_thread())
                gpu.changed.notify_all()
            return from_numpy(array)

        def pin(tensor):
            gpu.pinned.append(tensor.clone())
            return gpu.pinned[-1]

        def move(tensor, *given, **named):
            if not given or getattr(given[0], "type", "") != "cuda":
                return to(tensor, *given, **named)
            gpu.moved.append(any(tensor is other for other in gpu.pinned))
            return tensor

        def record_event():
            number = sum(event == "queued" for event, _ in gpu.events)
            gpu.events.append(("queued", number))
            return SimpleNamespace(synchronize=lambda: gpu.events.append(("waited", number)))

        monkeypatch.setattr(sentence_transformers, "SentenceTransformer", Transformer)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(record_event=record_event))
        monkeypatch.setattr(torch, "from_numpy", make)
        monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
        monkeypatch.setattr(torch.Tensor, "to", move)

    def forget(self) -> None:
        """Forget what was recorded while the model was loaded."""
        self.passes = 0
        for record in (self.padding, self.moved, self.events):
            record.clear()


@pytest.fixture
def expected(tiny_encoder) -> np.ndarray:
    return SentenceEncoder(EncoderConfig(model=tiny_encoder, device="cpu", batch_tokens=BATCH_TOKENS)).encode_passages(
        TEXTS
    )


@pytest.fixture
def gpu(expected, monkeypatch) -> GpuDouble:
    return GpuDouble(monkeypatch)


@pytest.fixture
def encoder(tiny_encoder, gpu) -> SentenceEncoder:
    encoder = SentenceEncoder(EncoderConfig(model=tiny_encoder, device="cuda", batch_tokens=BATCH_TOKENS))
    gpu.forget()
    return encoder


def test_a_gpu_gets_pinned_tensors_and_is_waited_for_once_the_next_pass_is_queued(encoder, gpu, expected):
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), expected, atol=1e-5)
    assert len(gpu.moved) >= 2 * gpu.passes
    assert all(gpu.moved), "pageable memory is copied while nothing is computed"
    last = gpu.passes - 1
    assert last > 3
    order = [("queued", 0), *(event for n in range(last) for event in (("queued", n + 1), ("waited", n)))]
    assert gpu.events == [*order, ("waited", last)]


def test_one_thread_pads_the_next_batch_while_a_gpu_computes(encoder, gpu, expected):
    encoder.encode_passages(TEXTS)
    n_passes, n_tensors = gpu.passes, len(gpu.padding)
    assert n_passes > 3
    gpu.forget()
    tensors_per_pass = n_tensors // n_passes

    def wait_for_the_next_batch() -> None:
        wanted = tensors_per_pass * min(gpu.passes + 2, n_passes)
        with gpu.changed:
            is_made = gpu.changed.wait_for(lambda: len(gpu.padding) >= wanted, timeout=60)
        assert is_made, f"pass {gpu.passes} ran for 60 s and no thread padded the next batch"

    gpu.before_pass = wait_for_the_next_batch
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), expected, atol=1e-5)
    assert len(set(gpu.padding)) == 1, "a tokenizer is not thread-safe"
    assert threading.current_thread() not in gpu.padding
