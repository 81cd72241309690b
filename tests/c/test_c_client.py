"""The C client: the bytes of the Python package, on every machine that has a compiler or an emulator here."""

import ctypes
import json
import math
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd import MPDD, BareSession, Key, Peaks
from fedmpdd.directions import direction, moments
from fedmpdd.errors import CodecError, GradientError
from tests.c.bridge import (
    BARE,
    COMPACT,
    COMPACT_SEED,
    FLAGS,
    NOT_FINITE,
    ROOT,
    SELF_CONTAINED,
    TOO_LARGE,
    Result,
    bare_key,
    compile_bridge,
    encode,
    pointer_to,
    python_frame,
    stream,
)

HEADER = ROOT / "c" / "fedmpdd.h"
PAGE = ROOT / "docs" / "c-client.md"
FAMILIES = ("rademacher", "hadamard")

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: run make c as root")


def make(target: str, build: Path) -> str:
    command = ["make", "-C", str(ROOT / "c"), target, f"OUT={build}", f"PYTHON={sys.executable}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this process: another one may run the same targets."""
    return tmp_path_factory.mktemp("build")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_bridge(tmp_path_factory.mktemp("bridge"))


def expected(codec: Peaks | MPDD, gradient: Any, key: Key, frame: int) -> Result:
    try:
        return 0, python_frame(codec, gradient, key, frame)
    except GradientError:
        return NOT_FINITE, b""
    except CodecError:
        return TOO_LARGE, b""


SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 1.0, -3e38, 2.5e38, 1e-20, 6e9], np.float32)


@st.composite
def gradients(draw: st.DrawFn) -> Any:
    """One to three thousand numbers of one size, or with special ones among them, or nothing else."""
    d = draw(st.one_of(st.integers(1, 3000), st.sampled_from([1, 2, 255, 256, 257, 2047, 2048, 2049])))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = np.float32(10.0 ** draw(st.integers(-44, 37)))
    with np.errstate(over="ignore"):
        gradient = (numbers.standard_normal(d).astype(np.float32) * scale).astype(np.float32)
    gradient[~np.isfinite(gradient)] = 1.0
    specials = draw(st.lists(st.sampled_from(range(len(SPECIAL))), max_size=3))
    share = draw(st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0]))
    if specials:
        chosen = numbers.random(d) < share
        gradient[chosen] = SPECIAL[numbers.choice(specials, int(chosen.sum()))]
    return gradient


@st.composite
def codecs(draw: st.DrawFn, d: int) -> Peaks | MPDD:
    family = draw(st.sampled_from(FAMILIES))
    group = 2 ** draw(st.integers(2, 8))
    if draw(st.booleans()) and group <= d:
        most = d // group if family == "hadamard" else min(4, d // group)
        return Peaks(draw(st.integers(1, most)), group, family)
    return MPDD(draw(st.integers(1, min(d, 40))), draw(st.sampled_from([32, 1])), family)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), gradient=gradients(), seed=st.integers(0, 2**64 - 1), slot=st.integers(0, 9))
def test_frames_are_those_of_the_python_package(
    library: ctypes.CDLL, data: st.DataObject, gradient: Any, seed: int, slot: int
) -> None:
    codec = data.draw(codecs(gradient.size))
    frame = data.draw(st.sampled_from([BARE, COMPACT, COMPACT_SEED, SELF_CONTAINED]))
    key = Key(seed, 0 if frame == COMPACT_SEED else slot)
    wanted = expected(codec, gradient, key, frame)
    assert encode(library, codec, gradient, key, frame) == wanted
    if isinstance(codec, MPDD) and codec.family == "rademacher":
        piece = 256 * data.draw(st.integers(1, 12))
        assert stream(library, codec, gradient, key, piece, frame) == wanted


@pytest.mark.parametrize("d", [32_767, 32_768, 32_769, 70_001])
def test_long_gradients_add_up_in_runs_of_tiles(library: ctypes.CDLL, d: int) -> None:
    gradient = np.random.default_rng(d).standard_normal(d).astype(np.float32)
    key = Key(2**64 - 1, 3)
    for codec in (MPDD(3), MPDD(9, bits=1), MPDD(20, family="hadamard"), Peaks(d // 4, 4), Peaks(40)):
        assert encode(library, codec, gradient, key) == (0, python_frame(codec, gradient, key, BARE))
    for piece in (256, 2048, 40_960):
        assert stream(library, MPDD(3), gradient, key, piece) == (0, python_frame(MPDD(3), gradient, key, BARE))


@pytest.mark.parametrize("codec", [MPDD(4), MPDD(9, 1), MPDD(4, 1, "hadamard"), MPDD(9, 32, "hadamard"), Peaks(4, 16)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(library: ctypes.CDLL, codec: Peaks | MPDD, value: float) -> None:
    gradient = np.ones(500, np.float32)
    gradient[499] = value
    assert encode(library, codec, gradient, Key(1)) == (NOT_FINITE, b"")


def test_square_roots_are_correctly_rounded(library: ctypes.CDLL) -> None:
    numbers = np.random.default_rng(1)
    values = np.concatenate(
        [
            np.ldexp(1 + numbers.random(100_000), numbers.integers(-1000, 1000, 100_000)),
            np.arange(1.0, 5_000.0) ** 2,
            np.nextafter(np.arange(1.0, 5_000.0) ** 2, 0),
            np.nextafter(np.ldexp(1.0, np.arange(-1000, 1000)), 0),
            np.nextafter(np.ldexp(1.0, np.arange(-1000, 1000)), np.inf),
        ]
    )
    roots = values.copy()
    library.bridge_sqrt(ctypes.c_void_p(roots.ctypes.data), ctypes.c_size_t(roots.size))
    assert roots.tolist() == [math.sqrt(value) for value in values.tolist()]


def test_sums_are_added_in_the_order_of_the_kernels(library: ctypes.CDLL) -> None:
    """What is left of terms that cancel is the rounding of each addition, and shows their order."""
    numbers, tiles, key = np.random.default_rng(5), 80, Key(77)
    d = 2048 * tiles
    c = np.arange(d)
    unit = 4 * (c // 2048) + c % 16 // 4
    # Sums within a unit are exact; those of units, in float64, are not: they are 2^60 apart.
    terms = numbers.integers(-512, 513, d // 2) * 2.0 ** numbers.integers(0, 60, 4 * tiles)[unit[: d // 2]]
    order = numbers.permutation(tiles // 2)
    cancelled = np.concatenate([terms, -terms.reshape(tiles // 2, 2048)[order].reshape(-1)])
    gradient = (cancelled * direction(key, 1, 0, d)).astype(np.float32)
    wanted = python_frame(MPDD(1), gradient, key, BARE)
    assert abs(np.frombuffer(wanted, "<f4")[0]) > 0
    assert encode(library, MPDD(1), gradient, key) == (0, wanted)
    for piece in (256, 2048, 33 * 256):
        assert stream(library, MPDD(1), gradient, key, piece) == (0, wanted)


def test_moments_are_those_of_the_kernels(library: ctypes.CDLL) -> None:
    for d in (1, 15, 16, 17, 3_000):
        gradient = np.random.default_rng(d).standard_normal(d).astype(np.float32)
        sums = np.zeros(2)
        for piece in (d, 256):
            library.bridge_moments(pointer_to(gradient), ctypes.c_uint32(d), ctypes.c_uint32(piece), pointer_to(sums))
            assert sums.tolist() == moments(gradient[np.newaxis])[0].tolist()


def test_the_mean_peak_is_that_of_numpy(library: ctypes.CDLL) -> None:
    library.bridge_pairwise.restype = ctypes.c_double
    numbers = np.random.default_rng(2)
    for count in [*range(1, 300), 1_000, 4_097, 100_003]:
        values = numbers.random(count)
        assert library.bridge_pairwise(pointer_to(values), ctypes.c_uint32(count)) == values[np.newaxis].sum(axis=1)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bound_of_scalars_is_that_of_the_format(library: ctypes.CDLL, family: str) -> None:
    bound = np.array([2.0**127], np.float32)
    above = np.nextafter(bound, np.float32(np.inf))
    assert encode(library, MPDD(1, family=family), bound, Key(1)) == (
        0,
        python_frame(MPDD(1, family=family), bound, Key(1), BARE),
    )
    assert encode(library, MPDD(1, family=family), above, Key(1)) == (TOO_LARGE, b"")


def test_the_header_is_short_and_includes_little() -> None:
    lines = HEADER.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 600
    assert max(map(len, lines)) <= 120
    assert re.findall(r"#include <(.*)>", "\n".join(lines)) == ["float.h", "stddef.h", "stdint.h", "string.h"]


def test_vectors_hold_on_this_machine(build: Path) -> None:
    assert make("x86", build).count("all checks hold") == 3


def test_a_wrong_vector_is_noticed(tmp_path: Path, build: Path) -> None:
    make("x86", build)
    table = (build / "vectors.h").read_text(encoding="utf-8")
    at = table.index("\\x46\\x4d\\x50\\x44") + len("\\x46\\x4d\\x50\\x44\\x01\\x01\\x00\\x20") + 4 * 24
    wrong = table[:at] + f"\\x{int(table[at + 2 : at + 4], 16) ^ 1:02x}" + table[at + 4 :]
    (tmp_path / "vectors.h").write_text(wrong, encoding="utf-8")
    sources = [str(ROOT / "c" / "tests" / name) for name in ("conformance.c", "hosted.c")]
    program = str(tmp_path / "conformance")
    folders = [f"-I{folder}" for folder in (tmp_path, ROOT / "c", ROOT / "c" / "tests")]
    subprocess.run(["gcc", *FLAGS, *folders, *sources, "-o", program], check=True)
    run = subprocess.run([program], capture_output=True, text=True)
    assert run.returncode == 1
    assert "FAILED: frame 0" in run.stdout


def test_a_target_without_its_compiler_says_what_is_missing(tmp_path: Path, build: Path) -> None:
    make("x86", build)  # the tables are there
    for program in ("sh", "make"):
        (tmp_path / program).symlink_to(shutil.which(program) or program)
    command = ["make", "-C", str(ROOT / "c"), "cortex", "wasm", f"OUT={build}"]
    run = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert run.returncode == 0
    assert "cortex: skipped: needs arm-none-eabi-gcc qemu-system-arm;" in run.stdout
    assert "wasm: skipped: needs clang wasm-ld node;" in run.stdout


def test_every_vector_that_the_header_makes_is_checked(build: Path) -> None:
    vectors = json.loads((ROOT / "docs" / "vectors.json").read_text(encoding="utf-8"))
    make("x86", build)
    table = (build / "vectors.h").read_text(encoding="utf-8")
    rows = {name: len(body.splitlines()) for name, body in re.findall(r" (\w+)\[\] = \{\n(.*?)\n\};", table, re.S)}
    made = [frame for frame in vectors["frames"] if frame["bits"] in (32, 1)]
    rounds = [frame for round_ in vectors["rounds"] for frame in round_["frames"] if int(frame[14:16], 16) in (32, 1)]
    peaks = [frame for round_ in vectors["peaks_rounds"] for frame in round_["frames"]]
    assert rows == {
        "sign_rows": len(vectors["signs"]) + 1,
        "outer_rows": 12 + 20 + 28,
        "order_rows": sum(row["d"] <= 2**24 for row in vectors["hadamard_rows"]),
        "scalar_rows": len(vectors["decode"]),
        "frame_rows": 3 * len(made) + 3 * len(vectors["peaks"]) + len(rounds) + len(peaks),
        "bare_rows": len(vectors["bare"]["frames"]),
    }


def test_the_page_shows_what_its_example_prints(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    program, printed = re.search(r"```c\n(.*?)```.*?```text\n(.*?)```", page, re.S).groups()  # type: ignore[union-attr]
    (tmp_path / "device.c").write_text(program, encoding="utf-8")
    command = re.search(r"^    (cc .*device\.c.*)$", page, re.M)
    assert command is not None
    words = command[1].replace("cc ", "gcc -Wall -Wextra -Werror ", 1).replace("-Ic", f"-I{ROOT / 'c'}").split()
    subprocess.run(words, check=True, cwd=tmp_path)
    assert subprocess.run([tmp_path / "device"], capture_output=True, text=True, check=True).stdout == printed
    key = bare_key(Peaks(m=7), 7850, 0x0123456789ABCDEF, 0, 3)
    assert python_frame(Peaks(m=7), example_gradient(7850), key, BARE).hex() == printed.split()[0]


@pytest.mark.slow
def test_sanitisers_find_nothing_whatever_the_sizes(build: Path) -> None:
    report = make("sanitised", build)
    assert "all checks hold" in report
    results = [int(word) for word in re.search(r"fuzz: results (.*)", report)[1].split()]  # type: ignore[index]
    assert len(results) == TOO_LARGE + 1
    assert all(count > 0 for name, count in enumerate(results) if name != 1)  # every result but that of null pointers


@pytest.mark.slow
@needs("aarch64-linux-gnu-gcc", "qemu-aarch64")
def test_vectors_hold_on_aarch64(build: Path) -> None:
    assert make("aarch64", build).count("all checks hold") == 1


@pytest.mark.slow
@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_vectors_hold_on_cortex_m3_and_m4(build: Path) -> None:
    assert make("cortex", build).count("all checks hold") == 2


@pytest.mark.slow
@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_the_client_is_small(build: Path) -> None:
    report = make("sizes", build)
    flash = [int(row.split()[0]) for row in report.splitlines() if row.endswith((".o", ".elf"))]
    stacks = [int(size) for size in re.findall(r"^(?:hadamard|rademacher|stream)-\S+ (\d+)$", report, re.M)]
    assert len(flash) == 2
    assert max(flash) <= 12 * 1024
    assert len(stacks) == 7
    assert max(stacks) <= 1024


@pytest.mark.slow
@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_a_device_learns_digits_and_its_frames_are_read(build: Path) -> None:
    rows = re.findall(r"round (\d+) loss/1000 (\d+) frame ([0-9a-f]+)", make("example", build))
    losses = [int(loss) for _, loss, _ in rows]
    assert len(rows) == 5
    assert losses == sorted(losses, reverse=True)
    assert losses[0] in (2302, 2303)  # the logarithm of ten, times a thousand: nothing learned yet
    assert losses[-1] < 0.6 * losses[0]
    session = BareSession(Peaks(m=7), 7850, 0x0123456789ABCDEF)
    for round_number, _, frame in rows:
        assert session.unpack(bytes.fromhex(frame), int(round_number), 3).d == 7850
    assert rows[0][2] == python_frame(Peaks(m=7), first_gradient(), session.key(0, 3), BARE).hex()


def first_gradient() -> Any:
    """That of the example before it has learned: float32, in its order of additions."""
    from fedmpdd.tasks.data import load

    train = load("mnist-5k").train
    gradient = np.zeros(7850, np.float32)
    for image, label in zip(train.images[:20], train.labels[:20], strict=True):
        pixels = image.reshape(-1).astype(np.float32) / np.float32(255)
        for digit in range(10):
            chance = np.float32(1) / np.float32(10)
            error = (chance - np.float32(digit == label)) / np.float32(20)
            gradient[784 * digit : 784 * digit + 784] += error * pixels
            gradient[7840 + digit] += error
    return gradient


@pytest.mark.slow
@needs("clang", "wasm-ld", "node")
def test_webassembly_makes_the_same_frames(build: Path) -> None:
    assert make("wasm", build).count("all checks hold") == 1
    numbers = np.random.default_rng(3)
    names = {BARE: "bare", COMPACT: "compact", COMPACT_SEED: "compact-seed", SELF_CONTAINED: "self-contained"}
    cases, wanted = [], []
    for codec in (MPDD(5), MPDD(50, 1, "hadamard"), Peaks(7), Peaks(2, 16, "rademacher")):
        for frame, name in names.items():
            gradient = numbers.standard_normal(int(numbers.integers(1_800, 90_000))).astype(np.float32)
            key = bare_key(codec, gradient.size, 5, frame, 9)
            scalars = "peaks" if isinstance(codec, Peaks) else "one-bit" if codec.bits == 1 else "float32"
            group = codec.group if isinstance(codec, Peaks) else 0
            words = {"scalars": scalars, "family": codec.family, "m": codec.m, "group": group}
            cases.append(
                {"gradient": gradient.tolist(), "codec": words, "seed": str(key.seed), "slot": 0, "frame": name}
            )
            wanted.append(python_frame(codec, gradient, key, frame).hex())
    command = [
        "node",
        str(ROOT / "c/tests/frames.mjs"),
        str(build / "web/fedmpdd.wasm"),
        str(build / "web/fedmpdd.mjs"),
    ]
    run = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == wanted


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each request."""

    def log_message(self, *_: object) -> None:
        return


@pytest.mark.slow
@needs("clang", "wasm-ld", "node", "chromium")
def test_a_page_makes_the_frame_of_the_python_package(build: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    make("wasm", build)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(build / "web")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    complaints: list[str] = []
    try:
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            page.wait_for_function("document.getElementById('frame').textContent.length > 1")
            frame = page.text_content("#frame")
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    assert complaints == []
    key = bare_key(Peaks(m=7), 7850, 0x0123456789ABCDEF, 0, 3)
    assert frame == python_frame(Peaks(m=7), example_gradient(7850), key, BARE).hex()


def example_gradient(d: int) -> Any:
    """That of docs/vectors.json, with which the page's examples are made too."""
    return (((37 * np.arange(d) + 11) % 101 - 50) / 64).astype(np.float32)
