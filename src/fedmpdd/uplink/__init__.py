"""The path of an update from a client to the server's step: what every engine does alike."""

from fedmpdd.uplink.error_feedback import ErrorFeedback, check_memory
from fedmpdd.uplink.mixed import (
    AnyMean,
    MixedMean,
    MixedMemory,
    MixedUplink,
    MixedUploads,
    check_links,
    client_weights,
    middle_spread,
    mixed_mean,
    read_mean,
)
from fedmpdd.uplink.protection import NoiseSource, Protection, SystemNoise
from fedmpdd.uplink.reference import Reference
from fedmpdd.uplink.robust import RobustMean
from fedmpdd.uplink.screening import Candidate, Rejection, Screening
from fedmpdd.uplink.secure_rounds import SecureRounds
from fedmpdd.uplink.uplink import Mean, Uplink, Uploads, check_parts

__all__ = [
    "AnyMean",
    "Candidate",
    "ErrorFeedback",
    "Mean",
    "MixedMean",
    "MixedMemory",
    "MixedUplink",
    "MixedUploads",
    "NoiseSource",
    "Protection",
    "Reference",
    "Rejection",
    "RobustMean",
    "Screening",
    "SecureRounds",
    "SystemNoise",
    "Uplink",
    "Uploads",
    "check_links",
    "check_memory",
    "check_parts",
    "client_weights",
    "middle_spread",
    "mixed_mean",
    "read_mean",
]
