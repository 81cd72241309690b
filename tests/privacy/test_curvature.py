"""What a network does, measured; and that shipped configs attack as they did when it was told by names."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmpdd.codecs import MPDD, FedSGD
from fedmpdd.codecs.evidence import Evidence
from fedmpdd.privacy.attacks import ATTACKS, Setting
from fedmpdd.privacy.attacks.adaptive import Adaptive
from fedmpdd.privacy.attacks.dlg import DLG
from fedmpdd.privacy.curvature import curvature_of
from fedmpdd.privacy.observation import Victim
from fedmpdd.privacy.priors import PublicImages
from fedmpdd.tasks import models
from fedmpdd.tasks.data import load
from tests.conftest import gaussian
from tests.privacy.fixtures import pictures


def images(count: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand((count, 1, 12, 12), generator=generator)


def measured(module: nn.Module, of: torch.Tensor | None = None) -> str:
    model, flat = models.flatten(module)
    return curvature_of(Victim(model, (1, 12, 12), 4, (0.5,), (0.25,)), flat, images() if of is None else of)


def network(activation: Callable[[], nn.Module], *norm: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    ends = [nn.Flatten(), nn.Linear(8 * 25, 4)]
    return nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), *norm, activation(), *ends)


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.Softplus, nn.ELU, nn.Mish])
def test_smooth_networks_bend(activation: Callable[[], nn.Module]) -> None:
    assert measured(network(activation)) == "smooth"
    assert measured(network(activation, nn.GroupNorm(2, 8))) == "smooth"


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.SELU])
def test_others_have_kinks(activation: Callable[[], nn.Module]) -> None:
    assert measured(network(activation)) == "kinked"
    assert measured(network(activation, nn.GroupNorm(2, 8))) == "kinked"


def test_a_network_without_activations_is_linear() -> None:
    assert measured(network(nn.Identity)) == "linear"


def test_what_a_network_does_counts_and_not_what_it_is_called() -> None:
    class ReLU(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x)

    class Logistic(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp_min(0)

    assert measured(network(ReLU)) == "smooth"
    assert measured(network(Logistic)) == "kinked"


def test_one_image_is_enough_and_outputs_may_be_a_table() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(nn.ReLU)

        def forward(self, x: torch.Tensor) -> Any:
            return {"logits": self.inner(x), "count": len(x)}

    assert measured(Table(), images(1)) == "kinked"


def test_a_module_that_insists_on_float32_is_measured_too() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(nn.Tanh)

        def forward(self, x: torch.Tensor) -> Any:
            if x.dtype != torch.float32:
                raise RuntimeError("float32 alone")
            return self.inner(x)

    assert measured(Stubborn()) == "smooth"


# ------------------------------------------------------------------------------------- shipped configs

PUBLIC = PublicImages(*pictures(20))
FOLDERS = [Path(models.__file__).parents[1] / "simulation" / "configs"]
FOLDERS += [Path(models.__file__).parents[2] / "fedmpdd_paper" / name for name in ("tables", "figures")]


def shipped() -> dict[tuple[str, str], str]:
    """The optimiser of dlg that configs which are attacked ask for, by model and init."""
    found = {}
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.toml")):
        config = tomllib.loads(path.read_text(encoding="utf-8"))
        if "audit" in config or "attack" in config.get("table", {}):
            asked = config.get("table", {}) | config.get("audit", {})
            for model in asked.get("models", [config["model"]]):
                found[model, config.get("init", "default")] = asked.get("optimiser", "measured")
    return found


def test_shipped_configs_are_of_these_models() -> None:
    assert {model for model, _ in shipped()} == {"logistic", "lenet", "cnn-lin2022", "cnn-mcmahan2017"}


EXPECTED: dict[str, tuple[str, str | None, int, bool]] = {  # curvature, dlg's optimiser and restarts, adaptive's L-BFGS
    "logistic": ("linear", "adam", 6, True),
    "lenet": ("smooth", "lbfgs", 2, True),
    "cnn-lin2022": ("kinked", "lbfgs", 2, False),
    "cnn-mcmahan2017": ("kinked", None, 0, False),  # no config attacks it with dlg
}


@pytest.mark.parametrize(("model", "init"), sorted(shipped()))
def test_shipped_configs_attack_as_they_did(model: str, init: str) -> None:
    digits = load("mnist-5k").test.images[:32].astype(np.float32) / 255
    flat_model, flat = models.build(model, (1, 28, 28), 10, init=init, seed=17)
    victim = Victim(flat_model, (1, 28, 28), 10, (0.0,), (1.0,))
    curvature, optimiser, restarts, smooth = EXPECTED[model]
    found = curvature_of(victim, flat, torch.from_numpy(digits))
    assert found == curvature

    def setting(evidence: Evidence) -> Setting:
        return Setting(found, evidence, 1, False, PUBLIC, 1.0, shipped()[model, init])

    whole = FedSGD().evidence(FedSGD().encode(gaussian(1, 500), [1]))
    dlg, adaptive = ATTACKS["dlg"](setting(whole)), ATTACKS["adaptive"](setting(whole))
    assert isinstance(dlg, DLG)
    assert isinstance(adaptive, Adaptive)
    if optimiser is not None:
        assert (dlg.optimiser, dlg.restarts) == (optimiser, restarts)
        assert dlg.iterations == (800 if optimiser == "lbfgs" else 2_000)
    assert adaptive.optimiser == ("lbfgs" if smooth else "adam")
    many = ATTACKS["adaptive"](setting(MPDD(400).evidence(MPDD(400).encode(gaussian(1, 500), [1]))))
    assert isinstance(many, Adaptive)
    assert many.prior == ("smooth" if smooth else "components")
