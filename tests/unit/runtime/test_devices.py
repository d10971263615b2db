"""Which device is taken, which precision on it, and what is said where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from octavo_common.errors import FailedPrecondition, InvalidArgument
from octavo_worker.kernels import gpu
from octavo_worker.models.gpu_precision import choose_gpu_precision
from octavo_worker.models.precision import PRECISIONS
from octavo_worker.runtime.devices import choose_device, default_batch_tokens, default_kv_bytes
from octavo_worker.runtime.devices import default_prompt_tokens_beside_decode as beside

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@no_gpu
def test_without_a_gpu_auto_is_the_cpu_and_cuda_says_why_not():
    assert choose_device("auto") == choose_device("cpu") == "cpu"
    with pytest.raises(FailedPrecondition, match="no model can be computed on a GPU here: no GPU: ") as error:
        choose_device("cuda")
    assert error.value.hint == "set OCTAVO_WORKER_DEVICE=cpu"


def test_an_unknown_device_is_refused_with_the_known_ones():
    with pytest.raises(InvalidArgument, match="no device 'tpu'") as error:
        choose_device("tpu")
    assert error.value.hint == "known: auto, cpu, cuda"


@pytest.mark.parametrize(("found", "reasons"), [((7, 5), 1), ((8, 0), 0), ((9, 0), 0), ((10, 0), 0)])
def test_a_gpu_that_is_too_old_is_told_by_its_capability(monkeypatch, found, reasons):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: found)
    assert len(gpu.reasons_against()) == reasons
    of_pages = gpu.reasons_against((11, 0), who="pages of fp8 need")
    assert of_pages == [f"pages of fp8 need compute capability 11.0, the GPU has {found[0]}.{found[1]}"]
    assert choose_device("auto") == ("cpu" if reasons else "cuda")


def test_auto_is_bfloat16_on_a_gpu_and_integers_stay_on_processors():
    assert choose_gpu_precision("auto", others=PRECISIONS) == "bfloat16"
    assert choose_gpu_precision("float32", others=PRECISIONS) == "float32"
    with pytest.raises(FailedPrecondition, match="w8a8 is for processors") as error:
        choose_gpu_precision("w8a8", others=PRECISIONS)
    assert "OCTAVO_WORKER_DEVICE=cpu" in error.value.hint
    with pytest.raises(InvalidArgument, match="'float8' is not supported"):
        choose_gpu_precision("float8", others=PRECISIONS)


def test_a_gpu_gets_larger_steps():
    assert default_batch_tokens(2, 64) == 256
    assert default_batch_tokens(2, 64, "cuda") == 2048
    assert default_batch_tokens(2, 4096, "cuda") == 4096
    assert (beside("cpu"), beside("cuda")) == (32, 512)
    assert default_kv_bytes(torch.device("cpu")) == 1 << 30
