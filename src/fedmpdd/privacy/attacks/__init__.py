"""Attacks: one file each, one interface, one registry."""

from collections.abc import Callable
from typing import NamedTuple

from fedmpdd.codecs.evidence import Choices, Evidence, Projections
from fedmpdd.privacy.attacks.adaptive import Adaptive
from fedmpdd.privacy.attacks.base import Attack, Progress, Reconstruction, Snapshot
from fedmpdd.privacy.attacks.dlg import DLG
from fedmpdd.privacy.attacks.gi_nas import GINAS
from fedmpdd.privacy.attacks.idlg import IDLG
from fedmpdd.privacy.attacks.inverting_gradients import InvertingGradients
from fedmpdd.privacy.curvature import Curvature
from fedmpdd.privacy.priors import PublicImages

FEW_SCALARS = 300  # up to here they cannot describe an image, and the attacker leans on public ones


class Setting(NamedTuple):
    """What an attacker knows of its task when it chooses its tools."""

    curvature: Curvature  # of the network, as measured
    evidence: Evidence  # of one update
    rounds: int  # that were seen
    noisy: bool  # whether clients add noise
    public: PublicImages
    effort: float  # multiplies iterations
    optimiser: str = "measured"  # of dlg and idlg: "lbfgs" or "adam" whatever was measured
    soft_labels: bool = True  # whether the loss takes probabilities of classes, so that they can be optimised

    def iterations(self, standard: int) -> int:
        """So many iterations, at least ten."""
        return max(10, round(standard * self.effort))

    @property
    def smooth(self) -> bool:
        """Whether gradients change little by little with the image: L-BFGS is for those.

        Those of a linear network do, for its loss bends.
        """
        return self.curvature != "kinked"


def _dlg(setting: Setting) -> Attack:
    joint = setting.soft_labels
    # As the paper has it, for stability. On the CNN of lin2022, six digits and the whole gradient, Adam finds SSIM 0.26
    # and 0.70 (weights uniform, and PyTorch's own) where L-BFGS finds 0.25 and 0.59.
    measured = "lbfgs" if setting.curvature == "smooth" else "adam"
    if (measured if setting.optimiser == "measured" else setting.optimiser) == "lbfgs":
        return DLG(iterations=setting.iterations(800), joint=joint)
    restarts = 6 if setting.curvature == "linear" else 2  # one start in two fails, and they are cheap
    return DLG(iterations=setting.iterations(2_000), optimiser="adam", restarts=restarts, joint=joint)


def _idlg(setting: Setting) -> Attack:
    dlg = _dlg(setting)
    assert isinstance(dlg, DLG)
    return IDLG(iterations=dlg.iterations, optimiser=dlg.optimiser, restarts=dlg.restarts)


def _inverting_gradients(setting: Setting) -> Attack:
    return InvertingGradients(iterations=setting.iterations(2_400))


def _gi_nas(setting: Setting) -> Attack:
    return GINAS(iterations=setting.iterations(600))


def _adaptive(setting: Setting) -> Attack:
    seen, numbers = setting.evidence, 0
    if isinstance(seen, Projections):
        numbers = seen.levels.shape[1]
    elif isinstance(seen, Choices):
        numbers = seen.places.shape[1] * seen.group.bit_length()
    few = isinstance(seen, Projections) and numbers * setting.rounds <= FEW_SCALARS
    # Without second derivatives pixels of their own get stuck early, and far fewer unknowns do not.
    leans = few or setting.noisy or not setting.smooth
    if isinstance(seen, Choices) or (isinstance(seen, Projections) and (leans or seen.rounding == "signs")):
        # As many components as the scalars can tell apart; settings were chosen on images that no table shows.
        components = min(200, max(60, numbers * setting.rounds))
        return Adaptive(
            iterations=setting.iterations(250), prior="components", components=components, public=setting.public
        )
    if setting.smooth:
        return Adaptive(iterations=setting.iterations(600), public=setting.public)
    return Adaptive(
        iterations=setting.iterations(2_000),
        optimiser="adam",
        tv_first=3e-2,
        tv_last=3e-3,
        public=setting.public,
    )


ATTACKS: dict[str, Callable[[Setting], Attack]] = {
    "dlg": _dlg,
    "idlg": _idlg,
    "inverting-gradients": _inverting_gradients,
    "gi-nas": _gi_nas,
    "adaptive": _adaptive,
}

__all__ = ["ATTACKS", "Attack", "Progress", "PublicImages", "Reconstruction", "Setting", "Snapshot"]
