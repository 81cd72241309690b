"""One call from a language model, texts and codecs to what an attacker gets of them."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.nn import functional

from fedmpdd.codecs import Codec
from fedmpdd.directions import why_no_gpu
from fedmpdd.display import Sheet, as_text, share_display, table
from fedmpdd.errors import ConfigError
from fedmpdd.imports import quote
from fedmpdd.pages import builder
from fedmpdd.pages.audits import display_name
from fedmpdd.privacy.text_audit import ATTACKS, Asked, run_text_audit
from fedmpdd.privacy.text_victim import TextVictim
from fedmpdd.runs.history import frame_of
from fedmpdd.tasks.losses import as_loss
from fedmpdd.tasks.stores import as_store
from fedmpdd.uplink.codec_config import CodecConfig, parse_codec


@dataclass(frozen=True)
class TextAuditResult:
    """What an attacker gets of the updates of a model that is fine-tuned on texts.

    Attributes:
        results: rows, verdicts and what was asked for, as JSON can hold them.

    """

    results: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per codec, attack, adversary and batch; those of the whole gradient, the control, come first."""
        rows: list[dict[str, Any]] = self.results["rows"]
        return rows

    @property
    def verdict(self) -> dict[str, str]:
        """What the updates of each codec tell: "tells sentence, label", "nothing beyond chance", or "inconclusive"."""
        return {display_name(codec["codec"]): codec["verdict"] for codec in self.results["codecs"]}

    def to_frame(self) -> Any:
        """Return a DataFrame of pandas with a row per codec, attack, adversary and batch.

        Example:
            >>> result.to_frame().groupby("attack").found.max()  # doctest: +SKIP

        """
        return frame_of([{**row, "codec": display_name(row["codec"])} for row in self.rows])

    def report(self, path: str | Path) -> Path:
        """Write the page: verdicts, and a table of all attacks with their controls. It loads nothing.

        Args:
            path: of the page; one that is there is replaced.

        Returns:
            The path.

        Example:
            >>> result.report("page.html")  # doctest: +SKIP

        """
        builder.check_page(Path(path), "report")
        page = builder.render(
            "fedmpdd.pages:text_audit.html.jinja",
            title="What an update of a fine-tuning tells of a text",
            kicker="fedmpdd.audit_text",
            verdicts=self.verdict,
            columns=list(_COLUMNS),
            rows=[_cells_of(row) for row in self.rows],
            d=self.results["d"],
            candidates=max((row["candidates"] or 0 for row in self.rows), default=0),
        )
        builder.write_page(Path(path), page, "report")
        return Path(path)

    def table(self) -> Sheet:
        """Return attacks side by side: what they found, its interval, chance and controls."""
        return table("share that was found, and its controls", _COLUMNS, [_cells_of(row) for row in self.rows])

    def notes(self) -> list[str]:
        """Return the verdicts, a line each."""
        return [f"{name}: {word}" for name, word in self.verdict.items()]

    def __repr__(self) -> str:
        return as_text(self.table(), self.notes())


def audit_text(
    model: nn.Module,
    examples: Any,
    codecs: Sequence[Codec | str],
    *,
    loss: Callable[..., Any] = functional.cross_entropy,
    attacks: Sequence[str] = ATTACKS,
    count: int = 40,
    batches: Sequence[int] = (1, 8),
    candidates: int = 100,
    token_count: int = 8,
    effort: float = 1.0,
    device: Literal["cpu", "cuda", "auto"] = "auto",
    seed: int = 17,
    progress: bool = True,
) -> TextAuditResult:
    """Attack the updates that clients would send of their texts, and say what an attacker gets.

    The attacker is the server, which knows the model, its adapters, the seed and the update. Where a codec needs a key
    to decode, an outsider is tried too, who knows all of that but the seed. Every attack is made on the whole gradient
    as well, the control: where it fails there, its failure says nothing.

    Args:
        model: a module that takes the inputs of the examples, such as `Prompt.model(lora)` at its start, or
            `history.model` after some rounds. It is copied, and attacked in eval mode, without dropout.
        examples: of `Prompt.examples` and the like, or in any form that `fm.partition` takes: some hundreds of texts.
            Those that are not attacked are what an attacker knows of other texts.
        codecs: what clients may send, objects such as `Peaks(m=14)` or words such as "mpdd:m=112:bits=1".
        loss: (outputs, targets) -> scalar, or (model, batch) -> scalar, as of a Task. Cross-entropy by default.
        attacks: some of "sentence" (which of the candidates was it, or was it in the batch), "label" (which class has
            it) and "tokens" (which words, by the adaptive attack on embeddings).
        count: how many sentences are attacked.
        batches: how many sentences an update is of, one size after the other. "label" and "tokens" attack updates of
            one sentence.
        candidates: how many sentences one is told from, itself among them. Decoys are of its class while there are any.
        token_count: how many sentences "tokens" attacks, which takes longest.
        effort: multiplies the iterations of "tokens".
        device: "cuda" for a GPU, "cpu", or "auto" for a GPU where there is one.
        seed: of the choice of sentences, of keys and attacks.
        progress: whether to show on standard error how far it is.

    Returns:
        The result, with `verdict`, `rows`, `to_frame`, `report`, and a table where it is printed. `results` is what
        goes into a JSON file.

    Raises:
        ConfigError: something cannot be meant, or the model cannot be attacked so.
        DataError: there are too few different texts.

    Example:
        >>> prompt = fm.text.Prompt(tokenizer, (" terrible", " great"))  # doctest: +SKIP
        >>> texts = prompt.examples(fm.text.load("sst2").train.select(range(2000)))  # doctest: +SKIP
        >>> result = fm.audit_text(prompt.model(lora), texts, [fm.Peaks(m=14)], attacks=["sentence"])  # doctest: +SKIP
        >>> result.verdict["peaks:m=14"]  # doctest: +SKIP
        'tells sentence'

    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model = {quote(model)}: expected a torch.nn.Module, such as Prompt.model(lora)")
    asked = Asked(
        codecs=_codecs(codecs),
        attacks=_attacks(attacks),
        count=_whole("count", count, 2),
        batches=_batches(batches),
        candidates=_whole("candidates", candidates, 5),
        token_count=min(_whole("token_count", token_count, 1), count),
        effort=_effort(effort),
        seed=_whole("seed", seed, 0),
    )
    victim = TextVictim(model, as_loss(loss), as_store(examples), _device(device))
    with share_display("audit") if progress else nullcontext(lambda part, share: None) as show:
        return TextAuditResult(run_text_audit(victim, asked, show))


_COLUMNS = {
    "codec": "left",
    "attack": "left",
    "by": "left",
    "batch": "right",
    "found": "right",
    "95 %": "right",
    "top 5": "right",
    "chance": "right",
    "absent": "right",
    "swapped": "right",
    "whole": "right",
    "verdict": "left",
}


def _cells_of(row: dict[str, Any]) -> list[str]:
    def share(name: str) -> str:
        return "–" if row[name] is None else f"{row[name]:.0%}"

    interval = "–" if row["low"] is None else f"{100 * row['low']:.0f} to {100 * row['high']:.0f} %"
    numbers = [
        str(row["batch"]),
        share("found"),
        interval,
        *map(share, ("top5", "chance", "absent", "swapped", "whole")),
    ]
    return [display_name(row["codec"]), row["attack"], row["adversary"], *numbers, row["verdict"]]


def _codecs(codecs: Any) -> tuple[str, ...]:
    if isinstance(codecs, str | Codec) or not isinstance(codecs, Sequence):
        raise ConfigError(f"codecs = {quote(codecs)}: expected a list of codecs, like [Peaks(m=14), 'mpdd:m=112']")
    if not codecs:
        raise ConfigError(
            'codecs is empty; expected some, like [Peaks(m=14)], or ["fedsgd"] for the whole gradient alone'
        )
    configs = [parse_codec(codec) if isinstance(codec, str) else CodecConfig.of(codec) for codec in codecs]
    for config in configs:
        if config.build().source == "losses":
            raise ConfigError(
                f"codecs: {config.words} sends losses, not gradients; there is no attack on those here yet"
            )
    return tuple(config.words for config in configs)


def _attacks(attacks: Any) -> tuple[str, ...]:
    expected = f"expected a list of some of {', '.join(ATTACKS)}"
    if isinstance(attacks, str) or not isinstance(attacks, Sequence) or not attacks:
        raise ConfigError(f"attacks = {quote(attacks)}: {expected}")
    for attack in attacks:
        if attack not in ATTACKS:
            raise ConfigError(f"attacks has {quote(attack)}; {expected}")
    return tuple(dict.fromkeys(attacks))


def _batches(batches: Any) -> tuple[int, ...]:
    if isinstance(batches, str) or not isinstance(batches, Sequence) or not batches:
        raise ConfigError(f"batches = {quote(batches)}: expected a list of sizes, like [1, 8]")
    return tuple(dict.fromkeys(_whole("batches", batch, 1) for batch in batches))


def _whole(key: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{key} = {quote(value)}: expected a whole number, {least} or more")
    return value


def _effort(effort: Any) -> float:
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0 < effort < float("inf"):
        raise ConfigError(f"effort = {quote(effort)}: expected a number above 0, such as 0.5 for half the iterations")
    return float(effort)


def _device(device: str) -> str:
    if device not in ("cpu", "cuda", "auto"):
        raise ConfigError(f'device = {quote(device)}: expected "cpu", "cuda" or "auto"')
    problem = None if device == "cpu" else why_no_gpu()
    if device == "cuda" and problem is not None:
        raise ConfigError(f'device = "cuda": {problem}; use device = "cpu" or "auto"')
    return "cuda" if device != "cpu" and problem is None else "cpu"
