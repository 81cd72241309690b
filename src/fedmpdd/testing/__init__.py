"""The common tests of codecs, for authors of one: `check_codec(MyCodec(...))`."""

from fedmpdd.errors import CodecCheckError
from fedmpdd.testing.codec_checks import CHECKS, check_codec

__all__ = ["CHECKS", "CodecCheckError", "check_codec"]
