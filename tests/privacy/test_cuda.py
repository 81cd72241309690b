"""An audit on a GPU: the same starts, and so the same images as on the CPU, up to rounding."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import fedmpdd as fm
from fedmpdd.codecs import MPDD, Codec, FedSGD, Peaks, TopK
from fedmpdd.privacy.audit import CELLS
from tests.front.test_audit import LABELS, PICTURES, network


@pytest.mark.parametrize("codec", [FedSGD(), MPDD(60), MPDD(60, bits=1), Peaks(9), TopK(50)], ids=str)
def test_attacks_on_a_gpu_find_what_those_on_the_cpu_find(gpu: Literal["cuda"], codec: Codec, tmp_path: Path) -> None:
    found = {}
    devices: list[Literal["cpu", "cuda"]] = ["cpu", gpu]
    for device in devices:
        folder = tmp_path / device
        attacks = ("dlg", "idlg", "inverting-gradients", "gi-nas", "adaptive")
        result = fm.audit(
            network(), PICTURES, [codec], labels=LABELS, attacks=attacks, count=2, effort=0.01, device=device,
            out=folder, progress=False,
        )  # fmt: skip
        images = {path.name: np.load(path)["history"][0] for path in sorted((folder / CELLS).iterdir())}
        found[device] = images, [(row["codec"], row["attack"], row["linkage"]) for row in result.rows]
    for name, first in found["cpu"][0].items():  # later iterations magnify the rounding of gradients
        np.testing.assert_allclose(found[gpu][0][name], first, atol=0.02, err_msg=name)
    assert found[gpu][1] == found["cpu"][1]


def test_labels_are_found_on_a_gpu_too(gpu: Literal["cuda"]) -> None:
    result = fm.audit(
        network(), PICTURES, ["mpdd:m=100"], labels=LABELS, count=2, effort=0.1, grants_labels=False, device=gpu,
        attacks=["adaptive"], progress=False,
    )  # fmt: skip
    assert result.rows[0]["labels_found"] >= 0.5
