"""The path of an update from a client to the server's step: what every engine does alike."""

from fedmpdd.uplink.error_feedback import ErrorFeedback, check_memory
from fedmpdd.uplink.protection import NoiseSource, Protection, SystemNoise
from fedmpdd.uplink.reference import Reference
from fedmpdd.uplink.robust import RobustMean
from fedmpdd.uplink.screening import Candidate, Rejection, Screening
from fedmpdd.uplink.secure_rounds import SecureRounds
from fedmpdd.uplink.uplink import Mean, Uplink, Uploads, check_parts

__all__ = [
    "Candidate",
    "ErrorFeedback",
    "Mean",
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
    "check_memory",
    "check_parts",
]
