"""Write the directory of malformed frames: run from the repository root when the format changes.

Each file is one frame, named after the exception it must raise: `what-is-wrong.ExceptionName.bin`, compact frames
starting with `compact-` (they belong to the session of `SESSION`).
"""

import struct
import zlib
from pathlib import Path

import numpy as np

from fedmpdd import MPDD, Session, pack
from fedmpdd.codecs import EDEN, FedSGD, Gaussian, LpProj, Peaks, SignSGD, TopK

HERE = Path(__file__).parent / "malformed"
GRADIENT = np.random.default_rng(0).standard_normal((1, 300)).astype(np.float32)
CODEC = MPDD(m=50, bits=1, family="hadamard")
LARGEST = struct.pack("<f", np.finfo(np.float32).max)
SESSION = Session(CODEC, 300, sends_seed=True)


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


def changed(frame: bytes, offset: int, new: bytes, seal: bool = True) -> bytes:
    body = frame[:offset] + new + frame[offset + len(new) :]
    return sealed(body[:-4]) if seal else body


def f4(value: float) -> bytes:
    """A float32 as it stands in a frame."""
    return struct.pack("<f", value)


def frames() -> dict[str, bytes]:
    """Name every malformed frame."""
    one = pack(CODEC.encode(GRADIENT, [7])[0])
    four = pack(MPDD(m=51, bits=4).encode(GRADIENT, [7])[0])
    eight = pack(MPDD(m=50, bits=8).encode(GRADIENT, [7])[0])
    full = pack(MPDD(m=50).encode(GRADIENT, [7])[0])
    whole = pack(FedSGD().encode(GRADIENT, [7])[0])
    top = pack(TopK(50).encode(GRADIENT, [7])[0])
    noisy = pack(Gaussian(1.0).encode(GRADIENT, [7])[0])
    signs = pack(SignSGD().encode(GRADIENT, [7])[0])
    eden = pack(EDEN(bits=3, rows=5).encode(GRADIENT, [7])[0])
    peaks = pack(Peaks(3, 64).encode(GRADIENT, [7])[0])
    rows = pack(LpProj(70).encode(GRADIENT, [7])[0])
    compact = SESSION.pack(CODEC.encode(GRADIENT, [7])[0])
    return {
        "empty.TruncatedFrameError": b"",
        "one-byte.TruncatedFrameError": b"F",
        "header-only.TruncatedFrameError": one[:32],
        "text.MagicError": b"GET /updates HTTP/1.1\r\nHost: example\r\n\r\n",
        "magic-lower-case.MagicError": changed(one, 0, b"fmpd"),
        "version-0.VersionError": changed(one, 4, b"\x00"),
        "version-2.VersionError": changed(one, 4, b"\x02"),
        "codec-0.UnknownCodecError": changed(one, 5, b"\x00"),
        "codec-200.UnknownCodecError": changed(one, 5, b"\xc8"),
        "family-9.UnknownCodecError": changed(one, 6, b"\x09"),
        "bits-2.UnknownCodecError": changed(one, 7, b"\x02"),
        "d-0.LimitError": changed(one, 8, struct.pack("<Q", 0)),
        "d-huge.LimitError": changed(one, 8, b"\xff" * 8),
        "d-above-receivers-limit.LimitError": changed(one, 8, struct.pack("<Q", 2**30 + 1)),
        "m-0.LimitError": changed(one, 16, struct.pack("<I", 0)),
        "m-above-d-hadamard.LimitError": changed(one, 16, struct.pack("<I", 301)),
        "m-huge-float32.LimitError": changed(full, 16, b"\xff" * 4),
        "m-above-payload-limit.LimitError": changed(full, 16, struct.pack("<I", 2**26 + 1)),
        "slot-beyond-seed.LimitError": changed(full, 20, b"\xff" * 4),
        "m-one-more.FrameLengthError": changed(full, 16, struct.pack("<I", 51)),
        "one-byte-short.FrameLengthError": sealed(one[:-5]),
        "one-byte-long.FrameLengthError": sealed(one[:-4] + b"\x00"),
        "two-frames.FrameLengthError": one + one,
        "flipped-bit-in-scalars.ChecksumError": changed(one, 40, bytes([one[40] ^ 4]), seal=False),
        "flipped-bit-in-seed.ChecksumError": changed(one, 24, bytes([one[24] ^ 1]), seal=False),
        "flipped-bit-in-checksum.ChecksumError": one[:-1] + bytes([one[-1] ^ 1]),
        "checksum-zero.ChecksumError": one[:-4] + bytes(4),
        "scale-nan.ContentError": changed(one, 32, f4(float("nan"))),
        "scale-infinite.ContentError": changed(one, 32, f4(float("inf"))),
        "scale-negative.ContentError": changed(one, 32, f4(-1.0)),
        "scale-minus-zero.ContentError": changed(one, 32, f4(-0.0)),
        "scale-zero-with-scalars.ContentError": changed(eight, 32, f4(0.0)),
        "scale-beyond-float32.ContentError": changed(eight, 32, f4(3.0e38)),
        "work-above-limit.LimitError": changed(full, 8, struct.pack("<QI", 2**30, 2**20)),
        "scalar-nan.ContentError": changed(full, 36, f4(float("nan"))),
        "scalar-infinite.ContentError": changed(full, 32, f4(float("-inf"))),
        "stray-bits-1-bit.ContentError": changed(one, 42, bytes([one[42] | 0x80])),
        "stray-bits-4-bit.ContentError": changed(four, 61, bytes([four[61] | 0x10])),
        "reserved-level-4-bit.ContentError": changed(four, 36, bytes([four[36] & 0xF0 | 0x08])),
        "reserved-level-8-bit.ContentError": changed(eight, 40, b"\x80"),
        "fedsgd-seed.ContentError": changed(whole, 24, b"\x07"),
        "fedsgd-slot.ContentError": changed(whole, 20, b"\x01"),
        "fedsgd-family.UnknownCodecError": changed(whole, 6, b"\x01"),
        "fedsgd-size-2.UnknownCodecError": changed(whole, 16, b"\x02"),
        "topk-index-beyond-d.ContentError": changed(top, 32 + 4 * 49, struct.pack("<I", 300)),
        "topk-index-twice.ContentError": changed(top, 36, top[32:36]),
        "topk-k-above-d.LimitError": changed(top, 16, struct.pack("<I", 301)),
        "topk-d-above-indices.LimitError": changed(top, 8, struct.pack("<Q", 2**32 + 1)),
        "gaussian-variance-nan.UnknownCodecError": changed(noisy, 16, f4(float("nan"))),
        "gaussian-variance-negative.LimitError": changed(noisy, 16, f4(-1.0)),
        "signsgd-stray-bits.ContentError": changed(signs, len(signs) - 5, bytes([signs[-5] | 0x80])),
        "signsgd-scale-zero-with-signs.ContentError": changed(signs, 32, f4(0.0)),
        "eden-bits-5.UnknownCodecError": changed(eden, 6, b"\x05"),
        "eden-all-rows-and-some.UnknownCodecError": changed(eden, 7, b"\x00"),
        "eden-rows-above-order.LimitError": changed(eden, 16, struct.pack("<I", 321)),
        "peaks-groups-of-two.UnknownCodecError": changed(peaks, 7, b"\x01"),
        "peaks-groups-of-2-to-the-17.UnknownCodecError": changed(peaks, 7, b"\x11"),
        "peaks-more-directions-than-coordinates.LimitError": changed(peaks, 16, struct.pack("<I", 64)),
        "peaks-scale-zero-with-peaks.ContentError": changed(peaks, 32, b"\x00"),
        "peaks-stray-bits.ContentError": changed(peaks, len(peaks) - 5, bytes([peaks[-5] | 0x80])),
        "scalar-above-2-to-the-127.ContentError": changed(full, 32, f4(np.nextafter(np.float32(2**127), np.inf))),
        "scale-one-bit-largest.ContentError": changed(one, 32, LARGEST),
        "eden-scale-largest.ContentError": changed(eden, 32, LARGEST),
        "lp-proj-scalars-largest.ContentError": changed(rows, 32, LARGEST * 70),
        "lp-proj-days-of-work.LimitError": changed(rows, 8, struct.pack("<QI", 2**30, 2**14)),
        "compact-empty.TruncatedFrameError": b"",
        "compact-self-contained.MagicError": one,
        "compact-version-2.VersionError": b"\xf2" + compact[1:],
        "compact-other-session.SessionMismatchError": compact[:1] + b"abc" + compact[4:],
        "compact-short.FrameLengthError": compact[:-1],
        "compact-long.FrameLengthError": compact + b"\x00",
        "compact-other-seed.ChecksumError": compact[:4] + bytes([compact[4] ^ 1]) + compact[5:],
        "compact-flipped-bit.ChecksumError": compact[:17] + bytes([compact[17] ^ 1]) + compact[18:],
    }


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for old in HERE.glob("*.bin"):
        old.unlink()
    for name, frame in frames().items():
        (HERE / f"{name}.bin").write_bytes(frame)
    print(f"wrote {len(frames())} frames to {HERE}")
