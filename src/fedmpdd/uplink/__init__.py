"""The path of an update from a client to the server's step: what every engine does alike."""

from fedmpdd.uplink.reference import Reference
from fedmpdd.uplink.robust import RobustMean
from fedmpdd.uplink.screening import Candidate, Rejection, Screening
from fedmpdd.uplink.secure_rounds import SecureRounds

__all__ = ["Candidate", "Reference", "Rejection", "RobustMean", "Screening", "SecureRounds"]
