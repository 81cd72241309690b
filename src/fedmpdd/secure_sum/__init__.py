"""Secure sums: the server learns the sum of the clients' vectors, and of one client's nothing else.

The double-masking protocol of Bonawitz et al. (2017), for a server that follows the protocol and is curious, and for
clients that may vanish at any moment; where they are many, each with a few neighbours instead of everybody (Bell et al.
2020). As an option clients sign their keys and who survived, against a server that lies about them. What that means,
the messages byte by byte and what it costs: docs/secure-sum.md.
"""

from fedmpdd.secure_sum.client import FEWEST_CLIENTS, SecureClient
from fedmpdd.secure_sum.fixed_point import FixedPoint
from fedmpdd.secure_sum.ledger import FileLedger, Ledger, MemoryLedger
from fedmpdd.secure_sum.messages import Phase, bytes_down, bytes_up, read_terms
from fedmpdd.secure_sum.neighbours import enough_neighbours
from fedmpdd.secure_sum.ring import Ring
from fedmpdd.secure_sum.server import SecureServer
from fedmpdd.secure_sum.signatures import Identity, Roster
from fedmpdd.secure_sum.simulate import SecureSum, secure_sum
from fedmpdd.secure_sum.terms import Terms, default_threshold, threshold_against

__all__ = [
    "FEWEST_CLIENTS",
    "FileLedger",
    "FixedPoint",
    "Identity",
    "Ledger",
    "MemoryLedger",
    "Phase",
    "Ring",
    "Roster",
    "SecureClient",
    "SecureServer",
    "SecureSum",
    "Terms",
    "bytes_down",
    "bytes_up",
    "default_threshold",
    "enough_neighbours",
    "read_terms",
    "secure_sum",
    "threshold_against",
]
