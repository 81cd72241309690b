"""Improved DLG: read the label off the last layer's gradient, then match the image alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmpdd.errors import InputError
from fedmpdd.privacy.attacks.base import Progress, Reconstruction, check_together
from fedmpdd.privacy.attacks.dlg import DLG
from fedmpdd.privacy.observation import Observation


@dataclass(frozen=True)
class IDLG(DLG):
    """For batches of one. The label is exact on a whole gradient, and a guess on an estimate of one."""

    joint: bool = False
    name: str = "idlg"

    def run(
        self, observations: Sequence[Observation], *, seed: int, progress: Progress | None = None
    ) -> Reconstruction:
        check_together(observations)
        if observations[0].batch != 1:
            raise InputError(f"iDLG reads one label, but batches have {observations[0].batch} examples; use dlg")
        labelled = [replace(o, labels=read_label(o)) for o in observations]
        return super().run(labelled, seed=seed, progress=progress)


def read_label(observation: Observation) -> Tensor:
    """The class whose row of the last weight matrix has the lowest sum in the decoded gradient, [1].

    The row of the true class is a negative multiple of the features, all others positive ones; so this is exact for one
    example and features that are not negative.
    """
    observed, model = observation.updates[0], observation.victim.model
    gradients = model.unflatten(observed.decoded)
    matrices = [value for value in gradients.values() if value.ndim == 2 and len(value) == observation.victim.classes]
    if not matrices:
        raise InputError("the model has no last matrix with a row per class to read the label from; use dlg")
    return torch.stack([matrices[-1].sum(dim=1).argmin()])
