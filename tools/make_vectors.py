"""Write docs/vectors.json from the slow reference: run from the repository root when the standard changes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedmpdd import MPDD, BareSession, Codec, Key, Peaks, Session, derive_seed, pack
from fedmpdd.directions import reference, spec
from fedmpdd.mqtt.messages import Contribution, RoundMessage, pack_update
from fedmpdd.mqtt.terms import Terms
from fedmpdd.wire.bundle import Bundle

SEED = 0x0123456789ABCDEF
PATH = Path("docs/vectors.json")


def bits(floats: Any) -> str:
    """float32 values as big-endian hexadecimal words, so that no decimal rounding is in the way."""
    return " ".join(f"{word:08x}" for word in np.asarray(floats, dtype=np.float32).view(np.uint32).reshape(-1))


def sign_text(values: Any) -> str:
    """±1 values as a string of signs."""
    return "".join("+" if value > 0 else "-" for value in values)


def example_gradient(d: int) -> Any:
    """A gradient anyone can rebuild exactly: g[c] = ((37·c + 11) mod 101 − 50) / 64."""
    return ((37 * np.arange(d) + 11) % 101 - 50).astype(np.float32) / np.float32(64)


def vectors() -> dict[str, Any]:
    """Everything the file holds."""
    signs = []
    for index, first_tile, d in [(0, 0, 80), (1, 0, 80), (2**32 - 1, 0, 80), (0, 1, 80), (0, 2**29 - 1, 80)]:
        values = reference.signs(SEED, index, d, first_tile=first_tile)
        signs.append({"index": index, "first_coordinate": first_tile * spec.TILE, "signs": sign_text(values)})
    rows = [
        {"d": d, "order": list(spec.hadamard_order(d)), "rows": [reference.hadamard_row(SEED, d, j) for j in range(8)]}
        for d in (4, 12, 28, 700, 7_850, 13_426, 319_242, 2**33)
    ]
    decode = []
    g = example_gradient(300)
    for family in ("rademacher", "hadamard"):
        encode = getattr(reference, f"{family}_encode")
        scalars = encode(g, SEED, 0, 6).astype(np.float32)
        out = np.zeros(300, dtype=np.float32)
        coefficients = (scalars.astype(np.float64) / 6).astype(np.float32)
        if family == "rademacher":
            reference.rademacher_decode(coefficients, SEED, 0, out)
        else:
            reference.hadamard_decode([coefficients], SEED, [0], out)
        decode.append(
            {"family": family, "d": 300, "m": 6, "scalars": bits(scalars), "first_8_of_estimate": bits(out[:8])}
        )
    frames = []
    for family in ("rademacher", "hadamard"):
        for width in (32, 16, 8, 4, 1):
            codec = MPDD(m=6, bits=width, family=family)
            update = codec.encode(g[np.newaxis], [Key(SEED, 0)])[0]
            frames.append(
                {
                    "family": family,
                    "bits": width,
                    "self_contained": pack(update).hex(),
                    "compact_with_seed": Session(codec, 300, sends_seed=True).pack(update).hex(),
                    "compact": Session(codec, 300, sends_seed=False).pack(update).hex(),
                }
            )
    return {
        "seed": f"{SEED:016x}",
        "signs": signs,
        "diagonal": {"d": 80, "signs": sign_text(reference.signs(SEED, 0, 80, spec.DOMAIN_DIAGONAL))},
        "rounding_words": {"slot": 3, "words": [f"{word:08x}" for word in reference.rounding_words(SEED, 3, 6)]},
        "derived_seed": {"round": 5, "client": 2**33 + 1, "seed": f"{derive_seed(SEED, 5, 2**33 + 1):016x}"},
        "outer_matrices": {
            str(order): [sign_text(row) for row in reference.outer_matrix(order)]
            for order in spec.OUTER_ORDERS
            if order > 1
        },
        "hadamard_rows": rows,
        "gradient": "g[c] = ((37*c + 11) mod 101 - 50) / 64 for c < 300",
        "decode": decode,
        "one_bit_scale": bits([math.sqrt(math.pi / 2 * float((g.astype(np.float64) ** 2).sum())) / _correction(g)]),
        "frames_are_of": {"m": 6, "slot": 0, "d": 300},
        "frames": frames,
        "rounds": [
            weighted_round(MPDD(m=7, bits=width, family=family), 50)
            for family in ("rademacher", "hadamard")
            for width in (32, 16, 8, 4, 1)
        ],
        "peaks": [peaks_frames(family) for family in ("rademacher", "hadamard")],
        "peaks_rounds": [weighted_round(Peaks(3, 16, family), 50) for family in ("rademacher", "hadamard")],
        "bare": bare_frames(),
        "mqtt": mqtt_messages(),
    }


def peaks_frames(family: str) -> dict[str, Any]:
    """Six peaks of sixteen of the example gradient, in every kind of frame."""
    codec = Peaks(6, 16, family)
    update = codec.encode(example_gradient(300)[np.newaxis], [Key(SEED, 0)])[0]
    return {
        "codec": words(codec),
        "d": 300,
        "slot": 0,
        "self_contained": pack(update).hex(),
        "compact_with_seed": Session(codec, 300, sends_seed=True).pack(update).hex(),
        "compact": Session(codec, 300, sends_seed=False).pack(update).hex(),
        "first_8_of_estimate": bits(codec.decode_mean([update])[:8]),
    }


def words(codec: Codec) -> dict[str, Any]:
    """A codec as a table: its name and parameters, those that are not given left out."""
    return {"name": codec.name, **{name: value for name, value in vars(codec).items() if value is not None}}


def bare_frames() -> dict[str, Any]:
    """Bare frames of the example gradient with d = 2,000, keys and seeds of sessions, and frames to be refused."""
    d, g = 2_000, example_gradient(2_000)[np.newaxis]
    grows = Peaks(2, 16, grows_to=8, grows_after=3)
    cases: list[tuple[Codec, Any, int, int]] = [
        (codec, keys, round_number, client)
        for codec in (Peaks(7), MPDD(50, bits=1, family="hadamard"), MPDD(4))
        for keys, round_number, client in (("derived", 5, 2**33 + 1), ("shared", 5, 12), ("partitioned", 5, 12))
    ]
    cases[0:1] = [(Peaks(7), "derived", 0, 0), (Peaks(7), "derived", 5, 2**33 + 1), (Peaks(7), "derived", 5, 2**64 - 3)]
    cases += [(grows, "derived", round_number, 12) for round_number in (0, 2, 3, 6)]
    frames = []
    for codec, keys, round_number, client in cases:
        session = BareSession(codec, d, SEED, keys=keys)
        key = session.key(round_number, client)
        frame = session.pack(session.codec_at(round_number).encode(g, [key])[0], round_number, client)
        place = {"codec": words(codec), "keys": keys, "round": round_number, "client": client}
        frames.append({**place, "seed": f"{key.seed:016x}", "slot": key.slot, "frame": frame.hex()})
    secret = bytes(range(16))
    seeds = [(Peaks(7), "derived"), (Peaks(7), "shared"), (grows, "derived"), (MPDD(50, 1, "hadamard"), "partitioned")]
    peaks, signs = (bytes.fromhex(frame["frame"]) for frame in (frames[0], frames[5]))
    refused = [
        (Peaks(7), b"", "FrameLengthError"),
        (Peaks(7), peaks[:-1], "FrameLengthError"),
        (Peaks(7), peaks + b"\0", "FrameLengthError"),
        (Peaks(7), peaks[:-1] + bytes([peaks[-1] | 128]), "ContentError"),  # the bit after the last peak
        (Peaks(7), b"\0" + peaks[1:], "ContentError"),  # scale 0, and peaks
        (MPDD(50, 1, "hadamard"), b"\0\0\xc0\x7f" + signs[4:], "ContentError"),  # the scale is NaN
        (MPDD(50, 1, "hadamard"), signs[:3] + b"\xff" + signs[4:], "ContentError"),  # it is negative
    ]
    return {
        "d": d,
        "session": f"{SEED:016x}",
        "frames": frames,
        "secret": secret.hex(),
        "training": "first",
        "sessions": [
            {
                "codec": words(codec),
                "keys": keys,
                "seed": f"{BareSession.from_secret(codec, d, secret, 'first', keys=keys).seed:016x}",
            }
            for codec, keys in seeds
        ],
        "refused": [{"codec": words(codec), "frame": frame.hex(), "error": error} for codec, frame, error in refused],
    }


def mqtt_messages() -> dict[str, Any]:
    """Terms of a training over MQTT, updates of two of its clients in a round, and the message of the next round."""
    codec, d, seed, number = Peaks(7), 2_000, 2024, 65_540
    terms = Terms(words(codec), ((d,),), seed, clients=10, per_round=5, lr=0.5, model_sha256="00" * 32)
    g = example_gradient(d)[np.newaxis]
    asked = terms.sample(number).tolist()
    clients = (asked[0], asked[3])
    updates = [codec.encode(g, [terms.key(number, client)])[0] for client in clients]
    packed = [terms.session.pack(update, number, client) for update, client in zip(updates, clients, strict=True)]
    message = RoundMessage(
        number + 1, bytes.fromhex("01020304"), Bundle(tuple(updates)).pack(), tuple(map(Contribution, clients)), start=9
    )
    return {
        "terms": terms.pack().decode(),
        "tag": terms.tag.hex(),
        "round": number,
        "asked": asked,
        "updates": [
            {"client": client, "update": pack_update(number, frame).hex()}
            for client, frame in zip(clients, packed, strict=True)
        ],
        "first_round": RoundMessage(0, bytes.fromhex("01020304")).pack(terms).hex(),
        "next_round": message.pack(terms).hex(),
    }


def weighted_round(codec: Codec, d: int) -> dict[str, Any]:
    """Three clients of a partitioned round with full-mantissa scalars and weights that are no integers."""
    gradients = np.stack([example_gradient(d) * np.float32(scale) for scale in (1 / 3, 0.7, 1.9)])
    keys, weights = [Key(SEED, slot) for slot in (2, 0, 5)], [0.1, 0.2, 0.7]
    updates = codec.encode(gradients, keys)
    return {
        "weights": weights,
        "frames": [pack(update).hex() for update in updates],
        "estimate": bits(codec.decode_mean(updates, weights)),
    }


def _correction(g: Any) -> float:
    squares = g.astype(np.float64) ** 2
    return 1 + float((squares**2).sum()) / (12 * float(squares.sum()) ** 2)


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {PATH}")
