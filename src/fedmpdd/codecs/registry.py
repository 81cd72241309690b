"""All codecs by name."""

from dataclasses import fields
from typing import Any

from fedmpdd.codecs.base import Codec
from fedmpdd.codecs.decomfl import DeComFL
from fedmpdd.codecs.eden import EDEN
from fedmpdd.codecs.fedsgd import FedSGD
from fedmpdd.codecs.gaussian import Gaussian
from fedmpdd.codecs.laplace import Laplace
from fedmpdd.codecs.lp_proj import LpProj
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.codecs.peaks import Peaks
from fedmpdd.codecs.qsgd import QSGD
from fedmpdd.codecs.randk import RandK
from fedmpdd.codecs.sa_fedlora import SAFedLora
from fedmpdd.codecs.signsgd import SignSGD
from fedmpdd.codecs.topk import TopK
from fedmpdd.errors import CodecError, InputError

CODECS: dict[str, type[Codec]] = {
    codec.name: codec
    for codec in (
        *(MPDD, FedSGD, QSGD, TopK, RandK, LpProj, Laplace, Gaussian, SignSGD, EDEN, DeComFL, SAFedLora),
        Peaks,
    )
}


def make_codec(name: str, parameters: dict[str, Any]) -> Codec:
    """Return a codec by its name and parameters, as configs and messages have them."""
    if name not in CODECS:
        raise CodecError(f"name = {name!r} is unknown; use one of {', '.join(CODECS)}")
    codec = CODECS[name]
    # Codecs are dataclasses, which their base class cannot say; shapes come from the model.
    known = [field.name for field in fields(codec) if field.name != "shapes"]  # type: ignore[arg-type]
    for key in parameters:
        if key not in known:
            raise CodecError(f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}")
    try:
        return codec(**parameters)
    except (InputError, TypeError) as error:
        raise CodecError(str(error).replace(f"{codec.__name__}.__init__()", name)) from None
