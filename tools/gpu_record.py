"""Run the GPU tests and benchmarks on this machine and keep what they print: docs/results/gpu.md and gpu.json.

    python tools/gpu_record.py [FOLDER]

Needs the package installed, with its training dependencies, on a machine with a CUDA device.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch

TESTS = (
    "directions/test_cuda.py",
    "codecs/test_cuda.py",
    "codecs/test_streaming_cuda.py",
    "simulation/test_cuda.py",
    "simulation/test_replay.py",
)


def output_of(*command: str) -> str:
    """Return standard output of a command of this Python; standard error is shown."""
    return subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, check=False).stdout


def main(folder: Path) -> None:
    """Write the two files."""
    import triton

    tests = output_of("pytest", "-q", "-p", "no:cacheprovider", "-rfEs", *(f"tests/{name}" for name in TESTS))
    codec = json.loads(output_of("benchmarks", "codec", "--device", "cuda", "--json"))
    rounds = [
        row
        for flags in ((), ("--tf32",))
        for row in json.loads(output_of("benchmarks", "rounds", "--device", "cuda", "--json", *flags))["rows"]
    ]
    machine = (
        f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, PyTorch {torch.__version__}, "
        f"Triton {triton.__version__}, Python {sys.version.split()[0]}"
    )
    lines = [
        "# On a GPU",
        "",
        f"Written by `tools/gpu_record.py` on: {machine}. What it means is in [performance.md](../performance.md).",
        "",
        "## Tests",
        "",
        "    pytest " + " ".join(f"tests/{name}" for name in TESTS),
        "",
        *(f"    {line}".rstrip() for line in tests.strip().splitlines()),
        "",
        "## `python -m benchmarks codec --device cuda`",
        "",
        "Medians; device time between events, and the whole call on the clock, launches and checks included.",
        "",
        "| what | implementation | device, ms | goal | clock, ms |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in codec["rows"]:
        shape = f"d = {row['d']:,}, m = {row['m']:,}, {row['clients']} client(s)"
        what = f"{row['op']} {row['family']}, {row['bits']} bits, {shape}"
        goal = "" if row["goal_ms"] is None else f"≤ {row['goal_ms']:.3g}"
        clock = "" if row["wall_ms"] is None else f"{row['wall_ms']:.3f}"
        lines.append(f"| {what} | {row['impl']} | {row['median_ms']:.4f} | {goal} | {clock} |")
    lines += [
        "",
        "## `python -m benchmarks rounds --device cuda`",
        "",
        "The CIFAR-10 CNN (319,242 parameters), 100 clients in every round, batch 64.",
        "",
        "| engine | codec | ms per round | of it encode and decode |",
        "| --- | --- | --- | --- |",
    ]
    for row in rounds:
        lines.append(
            f"| {row['engine']} | `{row['codec']}` | {1e3 / row['rounds_per_s']:.1f} | {row['codec_share']:.1%} |"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    document = {"machine": machine, "codec": codec["rows"], "rounds": rounds}
    (folder / "gpu.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "results")
