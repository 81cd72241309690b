import signal

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from fedmpdd.directions import available_isas

settings.register_profile("fedmpdd", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("fedmpdd")
# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["avx512", "avx2", "neon", "plain"])
def isa(request: pytest.FixtureRequest) -> str:
    """Every set of kernels, those this machine cannot run skipped by name."""
    name = str(request.param)
    if name not in available_isas():
        pytest.skip(f"this machine cannot run the {name} kernels")
    return name


@pytest.fixture
def gpu() -> str:
    """The name of a GPU to compute on; tests that ask for it are skipped where there is none."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device here")
    pytest.importorskip("triton.experimental.gluon", reason="Triton 3.6 or later is not installed")
    return "cuda"


def gaussian(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
