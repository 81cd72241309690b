"""Codecs: one file each, one contract, one registry that is open to users."""

from fedmpdd.codecs.backends import Backend, as_float32
from fedmpdd.codecs.base import NO_KEY, Arrays, Batch, Codec, Parameters, Section, Update
from fedmpdd.codecs.decomfl import DeComFL
from fedmpdd.codecs.eden import EDEN
from fedmpdd.codecs.evidence import Evidence
from fedmpdd.codecs.fedkseed import FedKSeed
from fedmpdd.codecs.fedsgd import FedSGD
from fedmpdd.codecs.feedsign import FeedSign
from fedmpdd.codecs.ferret import Ferret
from fedmpdd.codecs.loss_codec import LossCodec
from fedmpdd.codecs.lp_proj import LpProj
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.codecs.noise import Gaussian, Laplace
from fedmpdd.codecs.packing import check_finite_values
from fedmpdd.codecs.peaks import Peaks
from fedmpdd.codecs.qsgd import QSGD
from fedmpdd.codecs.randk import RandK
from fedmpdd.codecs.registry import CODECS, make_codec, register
from fedmpdd.codecs.sa_fedlora import SAFedLora
from fedmpdd.codecs.scalar_codec import ScalarCodec
from fedmpdd.codecs.signsgd import SignSGD
from fedmpdd.codecs.streaming import decode_pieces, encode_pieces
from fedmpdd.codecs.topk import TopK, known_coordinates

__all__ = [
    "CODECS",
    "EDEN",
    "MPDD",
    "NO_KEY",
    "QSGD",
    "Arrays",
    "Backend",
    "Batch",
    "Codec",
    "DeComFL",
    "Evidence",
    "FedKSeed",
    "FedSGD",
    "FeedSign",
    "Ferret",
    "Gaussian",
    "Laplace",
    "LossCodec",
    "LpProj",
    "Parameters",
    "Peaks",
    "RandK",
    "SAFedLora",
    "ScalarCodec",
    "Section",
    "SignSGD",
    "TopK",
    "Update",
    "as_float32",
    "check_finite_values",
    "decode_pieces",
    "encode_pieces",
    "known_coordinates",
    "make_codec",
    "register",
]
