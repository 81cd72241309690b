"""What updates of a fine-tuning tell of sentences: docs/results/text-leaks.json and the tables of docs/privacy.md.

    python tools/text_leaks.py                            # the first 8 blocks on the CPU, about 40 minutes
    python tools/text_leaks.py --layers 30 --device cuda  # all of it
    python tools/text_leaks.py --table                    # the tables of what was kept, at once

FEDMPDD_DATA names the folder with sst2. Attacked are adapters of rank 4 at their start, and after some rounds of FedSGD
with Adam; words are looked for in short sentences with fewer blocks.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "docs" / "results" / "text-leaks.json"
CODECS = (
    "mpdd:m=112",
    "mpdd:m=112:bits=1",
    "peaks:m=7",
    "peaks:m=14",
    "peaks:m=112",
    "examples/own_codec.py:Window(k=112)",
)
TOKEN_CODECS = ("mpdd:m=1792", "peaks:m=14")
RANKS = (16,)
SYMBOLS = 512  # of the random model
TOKENS = 12  # the most of a sentence, with its prompt, whose words are looked for
TRAINING: dict[str, Any] = {
    "per_round": 5,
    "batch": 8,
    "lr": 0.003,
    "server": "adam",
    "evaluate_every": 20,
    "progress": False,
}


def models(blocks: int, rank: int, rounds: int, device: str, most_tokens: int | None = None) -> Iterator[Any]:
    """Yield adapters at their start and after some rounds: a name, the model, and the examples."""
    import fedmpdd as fm

    base = fm.load_pretrained("smollm2-135m", layers=blocks)
    prompt = fm.text.Prompt(base.tokenizer, (" terrible", " great"))
    texts = fm.text.load("sst2").train
    if most_tokens is not None:
        texts = texts.select((prompt.lengths(texts) <= most_tokens).nonzero()[0])
    examples = prompt.examples(texts)
    model = prompt.model(fm.lora(base.model, rank))
    name = f"{blocks} block{'s' if blocks > 1 else ''}, rank {rank}"
    yield f"{name}, start", model, examples
    task = fm.Task(model, fm.partition(examples, 50), tuple(leaf[:50] for leaf in examples))
    history = fm.simulate(task, fm.FedSGD(), rounds=rounds, device=device, **TRAINING)
    yield f"{name}, after {rounds} rounds", history.model, examples


def tiny_models(rank: int = 4) -> Iterator[Any]:
    """Yield a model with random numbers, in texts of random symbols: adapters at their start, and moved at random."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import fedmpdd as fm
    from fedmpdd.tasks.text_models import AnswerModel

    torch.manual_seed(1)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 4}
    adapted = fm.lora(LlamaForCausalLM(LlamaConfig(vocab_size=SYMBOLS, **shape)).eval(), rank)
    ids = torch.randint(2, SYMBOLS, (400, 8))
    ids[:, -1] = 0  # a prompt
    examples = (ids, torch.ones_like(ids), ids[:, 0] % 2)
    yield f"random, width 64, 4 blocks, rank {rank}, start", AnswerModel(adapted, (0, 1)), examples
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.1)
    yield "the same, B drawn at random", AnswerModel(adapted, (0, 1)), examples


def audit(codecs: Sequence[str], prepared: Iterator[Any], **options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what was attacked, and the results of its audit."""
    import fedmpdd as fm

    for name, model, examples in prepared:
        result = fm.audit_text(model, examples, codecs, **options)
        print(name, result, sep="\n", flush=True)
        yield name, result.results


def tables(results: dict[str, Any]) -> str:
    """Return the tables of the page, in Markdown."""
    made = {"sentences": sentence_table, "words": word_table}
    return "\n\n".join(table(results) for half, table in made.items() if half in results)


def sentence_table(results: dict[str, Any]) -> str:
    """Return which sentences and labels were found."""
    lines = [
        "| model | codec | bytes | one sentence | by an outsider | one of 8 | label | label, by an outsider |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for state, one in results["sentences"].items():
        rows = {(row["codec"], row["attack"], row["adversary"], row["batch"]): row for row in one["rows"]}
        for codec in dict.fromkeys(row["codec"] for row in one["rows"]):
            asked = (
                ("sentence", "server", 1),
                ("sentence", "outsider", 1),
                ("sentence", "server", 8),
                ("label", "server", 1),
                ("label", "outsider", 1),
            )
            cells = [_cell(rows.get((codec, *one))) for one in asked]
            size = rows[codec, "sentence", "server", 1]["bytes"]
            lines.append(f"| {state} | `{_short(codec)}` | {size:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def word_table(results: dict[str, Any]) -> str:
    """Return which words were found."""
    lines = [
        "| model | codec | bytes | attack | words found | in their place | by chance | stuck | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for state, one in results["words"].items():
        for row in one["rows"]:
            shares = (row["found"], row["in_place"], row["chance"], row["truth_fits_better"])
            cells = [row["attack"], *("–" if share is None else f"{100 * share:.0f} %" for share in shares)]
            lines.append(
                f"| {state} | `{_short(row['codec'])}` | {row['bytes']:,} | {' | '.join(cells)} | {row['verdict']} |"
            )
    return "\n".join(lines)


def _short(codec: str) -> str:
    return codec.rpartition("/")[2].replace("own_codec.py:", "")


def _cell(row: dict[str, Any] | None) -> str:
    """A share and its interval; bold where it is a leak."""
    if row is None:
        return "–"
    share = f"{100 * row['found']:.0f} %"
    if row["verdict"] == "leaks":
        share = f"**{share}**"
    return f"{share} ({100 * row['low']:.0f} to {100 * row['high']:.0f})"


def main() -> None:
    """Audit, keep the results, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=8, help="blocks of the model whose sentences are looked for")
    parser.add_argument("--token-layers", type=int, default=1, help="blocks of the model whose words are looked for")
    parser.add_argument("--rounds", type=int, default=20, help="of training before the second audit")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", choices=("sentences", "words"), help="make one half again, and keep the other")
    parser.add_argument("--table", action="store_true", help="print what was kept, and attack nothing")
    asked = parser.parse_args()
    results = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.is_file() else {}
    options: dict[str, Any] = {"device": asked.device, "seed": asked.seed}
    whole = models(asked.layers, 4, asked.rounds, asked.device)
    sentences = audit(CODECS, whole, attacks=["sentence", "label"], **options)
    short = [models(asked.token_layers, rank, asked.rounds, asked.device, TOKENS) for rank in RANKS]
    words = audit(
        TOKEN_CODECS, chain(tiny_models(), *short), attacks=["tokens"], token_count=6, effort=1 / 3, **options
    )
    halves = {"sentences": sentences, "words": words}
    for half in [] if asked.table else [half for half in halves if asked.only in (None, half)]:
        results[half] = {}
        for name, one in halves[half]:
            results[half][name] = one
            asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(tables(results))


if __name__ == "__main__":
    main()
