"""Turn docs/vectors.json, and digits for the example, into C tables: make_tables.py FOLDER, from any folder."""

import argparse
import json
import struct
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MAX_D = 2**24
FAMILIES = {"rademacher": 0, "hadamard": 1}
FRAMES = {"bare": 0, "compact": 1, "compact_with_seed": 2, "self_contained": 3}
WAYS = {"derived": 0, "shared": 1, "partitioned": 2}
ONE = 1.0


def c_bytes(data: bytes) -> str:
    """Bytes as a C string, cut after each byte so that no digit joins an escape."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


def float_bits(value: float) -> str:
    """The float32 nearest to a number, as a word."""
    return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}U"


def codec_of(codec: dict[str, Any]) -> str:
    """A codec of the vectors as the initialiser of fedmpdd_codec."""
    family = FAMILIES[codec.get("family", "rademacher")]
    if codec["name"] == "peaks":
        return f"{{FEDMPDD_PEAKS, {family}, {codec['m']}U, {codec['group']}U}}"
    return f"{{{0 if codec['bits'] == 32 else 1}, {family}, {codec['m']}U, 0U}}"


def frame_row(codec: dict[str, Any], d: int, scale: float, key: tuple[int, int], kind: str, frame: bytes) -> str:
    """One frame that must come out of a gradient."""
    seed, slot = key
    return (
        f"{{{codec_of(codec)}, {d}U, {float_bits(scale)}, {{0x{seed:x}U, {slot}U}}, "
        f"(fedmpdd_frame){FRAMES[kind]}, {len(frame)}U, {c_bytes(frame)}}}"
    )


def mpdd(family: str, bits: int, m: int) -> dict[str, Any]:
    """A codec as the vectors write it."""
    return {"name": "mpdd", "m": m, "bits": bits, "family": family}


def frame_rows(vectors: dict[str, Any]) -> list[str]:
    """Every frame of the vectors that is written in float32, one bit or peaks."""
    seed = int(vectors["seed"], 16)
    rows = []
    kinds = ("self_contained", "compact_with_seed", "compact")
    m, slot, d = (vectors["frames_are_of"][name] for name in ("m", "slot", "d"))
    for frame in vectors["frames"]:
        if frame["bits"] in (32, 1):
            codec = mpdd(frame["family"], frame["bits"], m)
            rows += [frame_row(codec, d, ONE, (seed, slot), kind, bytes.fromhex(frame[kind])) for kind in kinds]
    for frame in vectors["peaks"]:
        key = (seed, frame["slot"])
        rows += [frame_row(frame["codec"], frame["d"], ONE, key, kind, bytes.fromhex(frame[kind])) for kind in kinds]
    for round_ in vectors["rounds"] + vectors["peaks_rounds"]:
        for text, scale in zip(round_["frames"], (1 / 3, 0.7, 1.9), strict=True):
            frame = bytes.fromhex(text)
            number, family, second, d, m, slot = struct.unpack_from("<5xBBBQII", frame)
            name = "rademacher" if family == 0 else "hadamard"
            if number == 13:
                codec = {"name": "peaks", "m": m, "group": 2**second, "family": name}
            elif second in (32, 1):
                codec = mpdd(name, second, m)
            else:
                continue
            rows.append(frame_row(codec, d, scale, (seed, slot), "self_contained", frame))
    return rows


def bare_rows(bare: dict[str, Any]) -> list[str]:
    """Bare frames with what their keys follow from; a codec that grows with what it grows by."""
    rows = []
    for frame in bare["frames"]:
        codec, seed = frame["codec"], int(frame["seed"], 16)
        data = bytes.fromhex(frame["frame"])
        rows.append(
            f"{{{frame_row(codec, bare['d'], ONE, (seed, frame['slot']), 'bare', data)}, "
            f"(fedmpdd_way){WAYS[frame['keys']]}, {frame['round']}U, {frame['client']}U, "
            f"{codec.get('grows_to', 0)}U, {codec.get('grows_after', 0)}U}}"
        )
    return rows


def vector_tables(vectors: dict[str, Any]) -> str:
    """The C tables of everything in the vectors that the header makes."""
    derived, words = vectors["derived_seed"], vectors["rounding_words"]
    signs = [f'{{0U, {row["index"]}U, {row["first_coordinate"]}U, "{row["signs"]}"}}' for row in vectors["signs"]] + [
        f'{{1U, 0U, 0U, "{vectors["diagonal"]["signs"]}"}}'
    ]
    orders = [
        f"{{{row['d']}U, {row['order'][0]}U, {row['order'][1]}U, {{{', '.join(f'{r}U' for r in row['rows'])}}}}}"
        for row in vectors["hadamard_rows"]
        if row["d"] <= MAX_D
    ]
    outers = [
        f'{{{order}U, {number}U, "{row}"}}'
        for order, rows in vectors["outer_matrices"].items()
        for number, row in enumerate(rows)
    ]
    scalars = [
        f"{{{FAMILIES[row['family']]}, {row['d']}U, {{{', '.join(f'0x{word}U' for word in row['scalars'].split())}}}}}"
        for row in vectors["decode"]
    ]
    tables = {
        "sign_row sign_rows": signs,
        "outer_row outer_rows": outers,
        "order_row order_rows": orders,
        "scalar_row scalar_rows": scalars,
        "frame_row frame_rows": frame_rows(vectors),
        "bare_row bare_rows": bare_rows(vectors["bare"]),
    }
    lines = [
        "/* Made by c/tests/make_tables.py from docs/vectors.json. */",
        f"static const uint64_t vector_seed = 0x{vectors['seed']}U;",
        f"static const uint64_t vector_session = 0x{vectors['bare']['session']}U;",
        f"static const uint32_t rounding_slot = {words['slot']}U;",
        f"static const uint32_t rounding_words[] = {{{', '.join(f'0x{word}U' for word in words['words'])}}};",
        f"static const uint32_t one_bit_scale = 0x{vectors['one_bit_scale']}U;",
        f"static const uint32_t derived_round = {derived['round']}U;",
        f"static const uint64_t derived_client = {derived['client']}U, derived_seed = 0x{derived['seed']}U;",
    ]
    for name, rows in tables.items():
        lines += [f"static const {name}[] = {{", *(f"    {row}," for row in rows), "};"]
    return "\n".join(lines) + "\n"


def digit_tables(count: int) -> str:
    """The first so many digits of mnist-5k for training, as bytes, with their labels."""
    from fedmpdd.tasks.data import load

    train = load("mnist-5k").train
    rows = [c_bytes(image.tobytes()) for image in train.images[:count]]
    return "\n".join(
        [
            "/* Made by c/tests/make_tables.py from mnist-5k. */",
            f"#define DIGITS {count}U",
            f"static const uint8_t labels[DIGITS] = {{{', '.join(f'{label}U' for label in train.labels[:count])}}};",
            "static const char *const digits[DIGITS] = {",
            *(f"    {row}," for row in rows),
            "};\n",
        ]
    )


def main() -> None:
    """Write the tables into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--digits", type=int, default=0, help="how many digits the example trains on")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    vectors = json.loads((ROOT / "docs" / "vectors.json").read_text(encoding="utf-8"))
    (folder / "vectors.h").write_text(vector_tables(vectors), encoding="utf-8")
    if options.digits:
        (folder / "digits.h").write_text(digit_tables(options.digits), encoding="utf-8")


if __name__ == "__main__":
    main()
