"""Every rival of docs/rivals.md trains a model of which most is frozen, as adapters are."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedmpdd as fm

STEPS: dict[str, Any] = {"local_steps": 4, "local_lr": 0.02, "lr": 1.0}
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedSGD": ("fedsgd", {}),
    "FedAvg": ("fedsgd", STEPS),
    "FedMPDD": ("mpdd:m=4:keys=derived", {"lr": 0.02}),
    "one bit": ("mpdd:m=16:bits=1:family=hadamard:keys=derived", {}),
    "peaks": ("peaks:m=4:group=8:keys=derived", {}),
    "peaks that grow": ("peaks:m=2:group=8:grows_to=4:grows_after=10:keys=derived", {}),
    "DeComFL": ("decomfl:m=8:keys=shared", {"lr": 0.02}),
    "DeComFL, steps": ("decomfl:m=8:keys=shared", {**STEPS, "local_lr": 0.005}),
    "FedKSeed": ("fedkseed:m=8:keys=derived", {**STEPS, "local_steps": 8, "local_lr": 0.005}),
    "Ferret": ("ferret:m=12:keys=derived", STEPS),
    "Ferret without blocks": ("mpdd:m=12:keys=derived", STEPS),
    "FeedSign": ("feedsign:keys=shared", {"lr": 0.03, "downlink": "replay", "downlink_bits": 1}),
    "Top-k": ("topk:k=8:error_feedback=true", {}),
    "QSGD": ("qsgd:bits=4", {}),
}


class Adapted(nn.Module):
    """A frozen layer and a low-rank change of it, which begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, 8).requires_grad_(False)
        self.down = nn.Linear(12, 2, bias=False)
        self.up = nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


def adapters() -> fm.Task:
    torch.manual_seed(0)
    model = Adapted()
    x = torch.randn(120, 12)
    with torch.no_grad():
        y = model.base(x) + x @ torch.randn(12, 2) @ torch.randn(2, 8) / 3
    return fm.Task(model=model, loss=nn.functional.mse_loss, clients=fm.partition((x, y), 12), test=(x, y))


@pytest.mark.parametrize(("words", "settings"), RIVALS.values(), ids=RIVALS.keys())
def test_every_rival_trains_adapters(words: str, settings: dict[str, Any]) -> None:
    task = adapters()
    history = fm.simulate(
        task,
        words,
        **{"rounds": 120, "per_round": 5, "batch": 5, "lr": 0.1, **settings},
        evaluate_every=120,
        progress=False,
    )
    losses = [float(entry.loss) for entry in history.rounds if entry.loss is not None]
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
    before, after = (dict(model.named_parameters()) for model in (Adapted(), history.model))
    assert set(before) == set(after)
    torch.manual_seed(0)
    assert torch.equal(after["base.weight"], Adapted().base.weight)


def test_the_page_names_codecs_that_there_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "rivals.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `([a-z]\S*)` \|", text, flags=re.MULTILINE)
    assert len(rows) == len(RIVALS)
    for words in rows:
        assert fm.CODECS[words.partition(":")[0]]
