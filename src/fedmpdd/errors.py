"""Everything this package raises on purpose.

    FedmpddError
    ├── InputError (also a ValueError)     what the caller passed in cannot be used
    │   ├── GradientError                  shape, dtype, memory layout, NaN or infinity
    │   ├── KeyRangeError                  a seed or slot outside its range, or the wrong number of keys
    │   ├── CodecError                     parameters that no codec has, or updates that do not belong together
    │   ├── BackendError                   kernels or threads that this machine cannot give
    │   ├── ConfigError                    a key of a run's configuration that cannot be meant
    │   ├── DataError                      a dataset that is unknown, missing or damaged
    │   ├── RunError                       a run folder that is in the way, missing, or of another run
    │   │   └── JournalError               a journal that is missing, damaged, or of another run
    │   ├── DocumentError                  a JSON text that is none, nested too deeply, or too long
    │   ├── PrivacyError                   a guarantee that cannot be stated
    │   └── OrderError                     a client cannot do what the server asks
    ├── CodecCheckError                    a codec of somebody's own does not do what every codec must
    ├── MissingDependencyError             a package that this command needs is not installed
    ├── ReplyError                         a client's reply does not count
    ├── SecureSumError                     a secure sum cannot be finished, and was not seen
    └── WireError (also a ValueError)      bytes from outside are not an update we can believe
        ├── TruncatedFrameError            shorter than the smallest frame
        ├── MagicError                     not a fedmpdd frame at all
        ├── VersionError                   a frame of a version this package does not read
        ├── UnknownCodecError              codec, family or bits that this package does not know
        ├── SessionMismatchError           a compact frame made for another session
        ├── LimitError                     d, m or slot is zero or beyond what the receiver allows
        ├── FrameLengthError               longer or shorter than its own header says
        ├── ChecksumError                  damaged on the way, or made for another key
        └── ContentError                   NaN, infinity, reserved levels, stray bits or anything else never written

Every message says what came, what was expected and what to do about it.
"""

__all__ = [
    "BackendError",
    "ChecksumError",
    "CodecError",
    "ConfigError",
    "ContentError",
    "DataError",
    "DocumentError",
    "FedmpddError",
    "FrameLengthError",
    "GradientError",
    "InputError",
    "JournalError",
    "KeyRangeError",
    "LimitError",
    "MagicError",
    "MissingDependencyError",
    "OrderError",
    "PrivacyError",
    "ReplyError",
    "RunError",
    "SecureSumError",
    "SessionMismatchError",
    "TruncatedFrameError",
    "UnknownCodecError",
    "VersionError",
    "WireError",
]


class FedmpddError(Exception):
    """Base of everything this package raises on purpose."""


class InputError(FedmpddError, ValueError):
    """What the caller passed in cannot be used."""


class GradientError(InputError):
    """A gradient of the wrong shape, dtype or layout, or with values that are not finite."""


class KeyRangeError(InputError):
    """A seed or slot outside its range, or the wrong number of keys."""


class CodecError(InputError):
    """Parameters that no codec has, or updates that do not belong together."""


class BackendError(InputError):
    """Kernels or threads that this machine cannot give."""


class ConfigError(InputError):
    """A key of a run's configuration that cannot be meant."""


class DataError(InputError):
    """A dataset that is unknown, missing or damaged."""


class RunError(InputError):
    """A run folder that is in the way, missing, or of another run."""


class JournalError(RunError):
    """A journal that is missing, damaged, or of another run."""


class DocumentError(InputError):
    """A JSON text that is none, nested too deeply, or too long."""


class PrivacyError(InputError):
    """A guarantee that cannot be stated."""


class OrderError(InputError):
    """A client cannot do what the server asks."""


class CodecCheckError(FedmpddError):
    """A codec does not do what every codec must."""


class MissingDependencyError(FedmpddError):
    """A package that this command needs is not installed."""


class ReplyError(FedmpddError):
    """A client's reply does not count."""


class SecureSumError(FedmpddError):
    """A secure sum cannot be finished, and was not seen."""


class WireError(FedmpddError, ValueError):
    """Bytes from outside are not an update we can believe."""


class TruncatedFrameError(WireError):
    """Shorter than the smallest frame."""


class MagicError(WireError):
    """Not a fedmpdd frame at all."""


class VersionError(WireError):
    """A frame of a version this package does not read."""


class UnknownCodecError(WireError):
    """Codec, family or bits that this package does not know."""


class SessionMismatchError(WireError):
    """A compact frame made for another session."""


class LimitError(WireError):
    """A d, m or slot that is zero or beyond what the receiver allows."""


class FrameLengthError(WireError):
    """Longer or shorter than its own header says."""


class ChecksumError(WireError):
    """Damaged on the way, or made for another key."""


class ContentError(WireError):
    """NaN, infinity, reserved levels, stray bits, or anything else that this package never writes."""
