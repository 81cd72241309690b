"""Trainings whose bits depend on no machine: every library is held to the instructions that all x86-64 machines have.

PyTorch, MKL, oneDNN, OpenBLAS and NumPy choose their kernels by the processor, and other kernels add up in another
order. A hash that two machines are to agree on is therefore computed in a process of its own with this environment.
"""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PORTABLE = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "NEHALEM",
    "OPENBLAS_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
}


def why_not_portable() -> str | None:
    """Return why this machine cannot repeat the recorded bits, None where it can."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        return f"bits of gradients were recorded on x86-64 Linux, and this is {platform.machine()} {sys.platform}"
    return None


def run_portably(module: str, *arguments: str) -> str:
    """Run a module of the tests with the portable environment, and return the text that it writes.

    Args:
        module: its name, like "tests.frozen.trainings"; its `main` takes a path to write to.
        arguments: what it is given after that path.

    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        ended = subprocess.run(
            [sys.executable, "-W", "ignore::ImportWarning", "-m", module, str(out), *arguments],
            env={**os.environ, **PORTABLE},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if ended.returncode != 0:
            raise RuntimeError(f"{module} ended with status {ended.returncode}:\n{ended.stderr}")
        return out.read_text(encoding="utf-8")
