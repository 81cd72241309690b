"""Codecs: one file each, one contract, one registry."""

from fedmpdd.codecs.base import NO_KEY, Arrays, Codec, Parameters, Section, Update
from fedmpdd.codecs.decomfl import DeComFL
from fedmpdd.codecs.eden import EDEN
from fedmpdd.codecs.fedsgd import FedSGD
from fedmpdd.codecs.gaussian import Gaussian
from fedmpdd.codecs.laplace import Laplace
from fedmpdd.codecs.lp_proj import LpProj
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.codecs.peaks import Peaks
from fedmpdd.codecs.pieces import decode_pieces, encode_pieces
from fedmpdd.codecs.qsgd import QSGD
from fedmpdd.codecs.randk import RandK
from fedmpdd.codecs.registry import CODECS, make_codec
from fedmpdd.codecs.sa_fedlora import SAFedLora
from fedmpdd.codecs.shared_mean import mean_rounding, shared_mean, update_of_scalars
from fedmpdd.codecs.signsgd import SignSGD
from fedmpdd.codecs.topk import TopK

__all__ = [
    "CODECS",
    "EDEN",
    "MPDD",
    "NO_KEY",
    "QSGD",
    "Arrays",
    "Codec",
    "DeComFL",
    "FedSGD",
    "Gaussian",
    "Laplace",
    "LpProj",
    "Parameters",
    "Peaks",
    "RandK",
    "SAFedLora",
    "Section",
    "SignSGD",
    "TopK",
    "Update",
    "decode_pieces",
    "encode_pieces",
    "make_codec",
    "mean_rounding",
    "shared_mean",
    "update_of_scalars",
]
