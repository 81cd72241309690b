"""The notebook runs as it stands, and shows what it was executed with."""

import base64
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "own_task.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
PNG = b"\x89PNG"


def test_every_cell_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python alone: the package needs no Jupyter to be tested."""
    plt.switch_backend("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    with redirect_stdout(printed):
        for cell in CODE:
            exec("".join(cell["source"]), names)
    plt.close("all")
    assert printed.getvalue() == "".join(text_of("stream"))
    assert names["history"].final_accuracy > 0.8
    assert list(names["result"].histories) == ["fedsgd", "topk:k=40", "mpdd:m=400:bits=1:family=hadamard", "peaks:m=14"]
    # Bytes are the same on every machine.
    sent = {name: by_seed[17].last.uplink_bytes for name, by_seed in names["result"].histories.items()}
    assert sent["fedsgd"] > 200 * sent["mpdd:m=400:bits=1:family=hadamard"] > 400 * sent["peaks:m=14"]


def text_of(kind: str) -> list[str]:
    return ["".join(output["text"]) for cell in CODE for output in cell["outputs"] if output["output_type"] == kind]


def test_it_was_executed_in_order_and_holds_a_picture() -> None:
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert [base64.b64decode("".join(one))[:4] for one in pictures] == [PNG]
    assert not re.search(r"\\u001b|/home/|/tmp/", NOTEBOOK.read_text(encoding="utf-8"))


def test_its_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", "".join("".join(cell["source"]) for cell in CELLS))
    assert targets
    assert all((NOTEBOOK.parent / target).exists() for target in targets)
