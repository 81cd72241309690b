"""What updates of fine-tuning tell of texts: which sentence, which class, which words.

Every attack has controls. The same attack is made on the whole gradient; where that fails, a failure on a codec says
nothing. Sentences are looked for in updates that are not of them, and whoever finds them there guesses. An update of a
sentence with another class shows how much of a success is owed to the class.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedmpdd.codecs import Codec
from fedmpdd.directions import Key, derive_seed
from fedmpdd.errors import ConfigError, DataError
from fedmpdd.pages.verdicts import BY_CHANCE, INCONCLUSIVE, luck
from fedmpdd.privacy.linkage import FEWEST_CANDIDATES
from fedmpdd.privacy.observation import ObservedUpdate
from fedmpdd.privacy.text_scores import (
    read_by_outsider,
    read_by_server,
    scores_by_length,
    scores_of_candidates,
    scores_of_classes,
)
from fedmpdd.privacy.text_sums import solve_for_tokens
from fedmpdd.privacy.text_tokens import ITERATIONS, find_tokens, layout_of, luck_of, shared_tokens, shares
from fedmpdd.privacy.text_victim import TextVictim
from fedmpdd.uplink.codec_config import parse_codec
from fedmpdd.wire.frames import Session

ATTACKS = ("sentence", "label", "tokens")
SUMS = "token sums"  # what "tokens" finds of layers that see one token at a time
SERVER, OUTSIDER = "server", "outsider"
CONTROL = "fedsgd"  # the whole gradient
LEAKS, NOTHING = "leaks", "nothing beyond chance"
PUBLIC = 200  # sentences by which an attacker knows what gradients are like; more where there are many classes
PUBLIC_PER_CLASS = 4
DECOYS = 3  # times as many as one needs, so that there are enough of each class
TOP = 5

Progress = Callable[[str, float], None]
Report = Callable[[float], None]  # how much of one attack is done


@dataclass(frozen=True)
class Asked:
    """What is attacked, and how.

    Args:
        codecs: in words.
        attacks: some of ATTACKS.
        count: sentences whose updates are attacked.
        batches: sentences of an update, one size after the other.
        candidates: sentences that one is told from, itself among them.
        token_count: sentences whose words are looked for.
        effort: multiplies the iterations of that.
        seed: of everything that is drawn.

    """

    codecs: tuple[str, ...]
    attacks: tuple[str, ...]
    count: int
    batches: tuple[int, ...]
    candidates: int
    token_count: int
    effort: float
    seed: int


@dataclass(frozen=True)
class Row:
    """What one attack found of one codec.

    Attributes:
        attack: one of ATTACKS; or "token sums", by which "tokens" solves for words where a layer sees one at a time.
        adversary: "server", who knows seed, model and adapters; or "outsider", who knows model and adapters alone.
        codec: in words.
        batch: sentences of an update.
        found: the share of sentences or labels that were right at the first guess; of tokens, those that were found.
        low, high: the interval of 95 % of `found` (Wilson); None for tokens, which do not come independently.
        top5, top5_low, top5_high: the same where five guesses are free; None but for sentences.
        chance: the share that a guess finds without an update: one of the candidates, the most frequent class, or the
            tokens that guesses for other sentences have in common with this one.
        absent: the first guess is the sentence, although the update is of another; it should be chance.
        swapped: the first guess is the sentence, although the client had it with another class.
        whole: what the same attack finds of the whole gradient.
        in_place: the share of tokens that were found where they stand; None but for tokens.
        truth_fits_better: in so many updates the truth explains more than what was found; None but for tokens.
        luck: how often a guess finds as much.
        count: sentences that were attacked.
        candidates: that each was told from.
        bytes: of an update.
        bits_revealed: that it says of its gradient.
        verdict: "leaks", "nothing beyond chance", or "inconclusive" where the whole gradient tells nothing either.
        seconds: that the attack took.

    """

    attack: str
    adversary: str
    codec: str
    batch: int
    found: float
    chance: float
    luck: float
    count: int
    bytes: int
    bits_revealed: int
    seconds: float
    low: float | None = None
    high: float | None = None
    top5: float | None = None
    top5_low: float | None = None
    top5_high: float | None = None
    absent: float | None = None
    swapped: float | None = None
    in_place: float | None = None
    truth_fits_better: float | None = None
    candidates: int | None = None
    whole: float | None = None
    verdict: str = ""


class TextCase:
    """The sentences that are attacked, and all others that an attacker has.

    Args:
        victim: the model, with the examples.
        asked: what is attacked.
        show: is told how far it is.

    """

    def __init__(self, victim: TextVictim, asked: Asked, show: Progress) -> None:
        self.victim, self.asked = victim, asked
        self.labels = victim.store.classes()
        if self.labels is None and {"label", "tokens"} & set(asked.attacks):
            raise ConfigError('the texts have no class each, as "label" and "tokens" need; give attacks=["sentence"]')
        for text in asked.codecs:
            Session(
                self.codec(text), victim.d, sends_seed=False
            )  # raises what does not fit, before anything is computed
        self._choose(np.random.default_rng([asked.seed, 0]))
        members = {batch: self._members(batch) for batch in asked.batches}
        parts: dict[str, NDArray[np.int64]] = {"victims": self.victims[:, None]}
        if set(asked.attacks) & {"sentence", "label"}:
            parts |= {"public": self.public[:, None]}
        if "sentence" in asked.attacks:
            parts |= {"decoys": self.decoys[:, None]}
            parts |= {f"batches of {batch}": rows for batch, rows in members.items() if batch > 1}
            if self.labels is not None:
                parts |= {"swapped": self.victims[:, None]}
        total = sum(rows.size for rows in parts.values())
        self.gradients: dict[str, Tensor] = {}
        looked_at = [0]

        def done(count: int) -> None:
            looked_at[0] += count
            show("gradients", looked_at[0] / total)

        for name, rows in parts.items():
            targets = self._other_classes(rows) if name == "swapped" else None
            self.gradients[name] = victim.gradients_of(rows, done, targets)

    def updates_of(self, gradients: Tensor, text: str, stream: int = 0) -> list[ObservedUpdate]:
        """Be the clients: encode gradients [updates, d], and hand over nothing but frames.

        Args:
            gradients: of the clients.
            text: the codec, in words.
            stream: of keys and noise, another one for other batches.

        """
        config = parse_codec(text)
        codec, protection = self.codec(text), config.protection()
        session = Session(codec, self.victim.d, sends_seed=False)
        updates = []
        for client, row in enumerate(np.ascontiguousarray(gradients.cpu().numpy())):
            key = Key(derive_seed(self.asked.seed, stream, client))
            if protection is None:
                update = codec.encode(row[np.newaxis], [key])[0]
            else:
                noise = np.random.default_rng([self.asked.seed, 1, stream, client])
                (update,) = protection.encode(row[np.newaxis], [key], [noise]).updates()
            updates.append(ObservedUpdate(self.victim.flat, session.pack(update), codec, key, protection))
        return updates

    def codec(self, text: str) -> Codec:
        """Return a codec as the model of this case takes it, at the round when it says most."""
        return parse_codec(text).build().for_shapes(self.victim.shapes).largest()

    def candidates_of(self, number: int) -> NDArray[np.int64]:
        """Return which decoys one sentence is told from: those of its class first, then others."""
        rng = np.random.default_rng([self.asked.seed, 2, number])
        order = rng.permutation(len(self.decoys))
        if self.labels is not None:
            alike = self.labels[self.decoys[order]] == self.labels[self.victims[number]]
            order = np.concatenate([order[alike], order[~alike]])
        return order[: self.asked.candidates - 1]

    def other_update(self, number: int) -> int:
        """Return whose update is none of the sentence: the next one's of its class, or the next one's."""
        others = np.roll(np.arange(len(self.victims)), -1 - number)[:-1]
        if self.labels is not None:
            alike = others[self.labels[self.victims[others]] == self.labels[self.victims[number]]]
            others = np.concatenate([alike, others])
        return int(others[0])

    def _choose(self, rng: np.random.Generator) -> None:
        """Deal out the examples: attacked, beside them in a batch, public, decoys. No text is in two of them."""
        asked, store = self.asked, self.victim.store
        first = tree_leaves(store.gather(torch.arange(len(store), device=self.victim.device))[:-1])[0]
        rows = first.flatten(1).cpu().numpy()
        _, different = np.unique(rows, axis=0, return_index=True)
        order = rng.permutation(np.sort(different))
        wanted = {
            "victims": asked.count,
            "beside": min(asked.count * (max(asked.batches) - 1), len(order) // 4),
            "public": max(PUBLIC, PUBLIC_PER_CLASS * self.classes),
            "decoys": DECOYS * (asked.candidates - 1),
        }
        spare = len(order) - wanted["victims"] - wanted["beside"]
        least = max(asked.batches) - 1 if wanted["beside"] else 0
        if asked.count < 2 or spare < 2 * FEWEST_CANDIDATES or wanted["beside"] < least:
            raise DataError(
                f"{len(order)} different texts came, and {asked.count} are attacked in batches of up to "
                f"{max(asked.batches)}; attack two or more, and give some hundred others, among which they are looked "
                "for"
            )
        wanted["public"] = min(wanted["public"], spare // 2)
        wanted["decoys"] = min(wanted["decoys"], spare - wanted["public"])
        self.victims, self.beside, rest = np.split(order, np.cumsum([wanted["victims"], wanted["beside"]]))
        if self.labels is not None:  # every class in turn, so that rare ones are there too
            classes = self.labels[rest]
            turns = np.array([(classes[:place] == one).sum() for place, one in enumerate(classes)])
            rest = rest[np.argsort(turns, kind="stable")]
        self.public = rest[: wanted["public"]]
        self.decoys = rng.permutation(rest[wanted["public"] :])[: wanted["decoys"]]
        self.prior = None
        if self.labels is not None:
            self.prior = torch.from_numpy(np.bincount(self.labels, minlength=self.classes) / len(self.labels))

    @property
    def classes(self) -> int:
        """How many classes there are; 1 where texts have none."""
        return 1 if self.labels is None else int(self.labels.max()) + 1

    def _members(self, batch: int) -> NDArray[np.int64]:
        """The batches [updates, batch] that the attacked sentences are in."""
        rng = np.random.default_rng([self.asked.seed, 3, batch])
        beside = [rng.choice(self.beside, batch - 1, replace=False) for _ in self.victims]
        return np.column_stack([self.victims, np.array(beside, dtype=np.int64).reshape(len(self.victims), batch - 1)])

    def _other_classes(self, rows: NDArray[np.int64]) -> Tensor:
        assert self.labels is not None
        shift = np.random.default_rng([self.asked.seed, 4]).integers(1, max(2, self.classes), rows.shape)
        return torch.from_numpy((self.labels[rows] + shift) % self.classes)


def run_text_audit(victim: TextVictim, asked: Asked, show: Progress) -> dict[str, Any]:
    """Return rows and verdicts of an audit of texts, as a table that JSON can hold.

    Args:
        victim: the model, with the examples.
        asked: what is attacked.
        show: is told what is at work, and how much of the whole is done.

    """
    case = TextCase(victim, asked, lambda part, share: show(part, 0.4 * share))
    codecs = tuple(dict.fromkeys((CONTROL, *asked.codecs)))
    rows: list[Row] = []
    steps = [(text, attack) for text in codecs for attack in asked.attacks]
    for number, (text, attack) in enumerate(steps):

        def report(share: float, done: int = number, part: str = f"{text}: {attack}") -> None:
            show(part, 0.4 + 0.6 * (done + share) / len(steps))

        report(0.0)
        rows += _ATTACKS[attack](case, text, report)
    rows = _judged(rows)
    by_codec = {text: [row for row in rows if row.codec == text] for text in codecs}
    return {
        "rows": [asdict(row) for row in rows],
        "codecs": [{"codec": text, "verdict": verdict_on(of_codec)} for text, of_codec in by_codec.items()],
        "d": victim.d,
        "asked": asdict(asked),
    }


def verdict_on(rows: Sequence[Row]) -> str:
    """Return what the updates of a codec tell, of all attacks."""
    leaking = list(dict.fromkeys(row.attack for row in rows if row.verdict == LEAKS))
    if leaking:
        return f"tells {', '.join(leaking)}"
    return NOTHING if any(row.verdict == NOTHING for row in rows) else INCONCLUSIVE


def _judged(rows: Sequence[Row]) -> list[Row]:
    """Rows with verdicts, and with what the same attack found of the whole gradient."""
    control = {(row.attack, row.batch): row for row in rows if row.codec == CONTROL and row.adversary == SERVER}
    judged = []
    for row in rows:
        # Somebody who guesses is called a leak in one codec of a hundred, whatever the number of attacks.
        allowed = BY_CHANCE / sum(other.codec == row.codec for other in rows)
        whole = control[row.attack, row.batch]
        word = LEAKS if row.luck <= allowed else NOTHING if whole.luck <= allowed else INCONCLUSIVE
        if word == NOTHING and row.truth_fits_better is not None and row.truth_fits_better > 0.5:
            word = INCONCLUSIVE  # the attack was stuck: a better one may find more
        judged.append(replace(row, whole=whole.found, verdict=word))
    return judged


def _common(case: TextCase, text: str, since: float) -> dict[str, Any]:
    codec = case.codec(text)
    numbers = {"bytes": codec.bytes_per_update(case.victim.d), "bits_revealed": codec.revealed_bits(case.victim.d)}
    return {"codec": text, "seconds": round(time.perf_counter() - since, 1), **numbers}


# --------------------------------------------------------------------------------------------- which sentence


def _sentence(case: TextCase, text: str, report: Report) -> list[Row]:
    rows = []
    for number, batch in enumerate(case.asked.batches):
        report(number / len(case.asked.batches))
        rows.append(_sentence_row(case, text, batch, SERVER))
        if batch == 1 and case.codec(text).needs_key:
            rows.append(_sentence_row(case, text, batch, OUTSIDER))
    return rows


def _sentence_row(case: TextCase, text: str, batch: int, adversary: str) -> Row:
    since = time.perf_counter()
    victims, decoys, public = (case.gradients[name] for name in ("victims", "decoys", "public"))
    updates = case.updates_of(victims if batch == 1 else case.gradients[f"batches of {batch}"], text, batch)
    # Every one is also looked for in the update of another, which gives the same number of guesses.
    swapped = None if "swapped" not in case.gradients or batch > 1 else case.gradients["swapped"]
    with_other_class = None if swapped is None else case.updates_of(swapped, text, batch)

    def rank(observed: ObservedUpdate, number: int) -> int:
        candidates = torch.cat([victims[number : number + 1], decoys[case.candidates_of(number)]])
        with torch.no_grad():
            if adversary == OUTSIDER:
                scores = scores_by_length(observed, candidates)
            else:
                scores = scores_of_candidates(observed, candidates, public, batch)
        return rank_of_first(scores.double().cpu().numpy(), np.random.default_rng([case.asked.seed, 5, number]))

    count = len(updates)
    there = np.array([rank(updates[number], number) for number in range(count)])
    absent = np.array([rank(updates[case.other_update(number)], number) for number in range(count)])
    candidates = 1 + min(len(case.decoys), case.asked.candidates - 1)
    low, high = wilson(int((there == 0).sum()), count)
    top_low, top_high = wilson(int((there < TOP).sum()), count)
    return Row(
        attack="sentence",
        adversary=adversary,
        batch=batch,
        found=float((there == 0).mean()),
        low=low,
        high=high,
        top5=float((there < TOP).mean()),
        top5_low=top_low,
        top5_high=top_high,
        chance=1 / candidates,
        luck=luck(int((there == 0).sum()), count, 1 / candidates),
        absent=float((absent == 0).mean()),
        swapped=None
        if with_other_class is None
        else float(np.mean([rank(one, number) == 0 for number, one in enumerate(with_other_class)])),
        count=count,
        candidates=candidates,
        **_common(case, text, since),
    )


def rank_of_first(scores: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Return how many scores are higher than the first; among equal ones its place is drawn.

    Args:
        scores: of the truth, and then of others. NaN is the lowest.
        rng: to draw with. Where nothing tells candidates apart, the truth is found no more often than any other.

    """
    scores = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    equal = int((scores[1:] == scores[0]).sum())
    return int((scores[1:] > scores[0]).sum()) + int(rng.integers(0, equal + 1))


# --------------------------------------------------------------------------------------------------- which class


def _label(case: TextCase, text: str, report: Report) -> list[Row]:
    adversaries = (SERVER, OUTSIDER) if case.codec(text).needs_key else (SERVER,)
    return [_label_row(case, text, adversary) for adversary in adversaries]


def _label_row(case: TextCase, text: str, adversary: str) -> Row:
    assert case.labels is not None
    assert case.prior is not None
    since = time.perf_counter()
    read = read_by_server if adversary == SERVER else read_by_outsider
    public, labels = case.gradients["public"], torch.from_numpy(case.labels[case.public])
    truth = case.labels[case.victims]
    guesses = []
    for observed in case.updates_of(case.gradients["victims"], text):
        with torch.no_grad():
            guesses.append(int(scores_of_classes(read(observed), public, labels, case.prior).argmax()))
    right, count = int((np.array(guesses) == truth).sum()), len(truth)
    # Of all guesses without an update the best one, had it been known: the most frequent class of these very sentences.
    chance = float(np.bincount(truth).max() / count)
    low, high = wilson(right, count)
    return Row(
        attack="label",
        adversary=adversary,
        batch=1,
        found=right / count,
        low=low,
        high=high,
        chance=chance,
        luck=luck(right, count, chance),
        count=count,
        **_common(case, text, since),
    )


# --------------------------------------------------------------------------------------------------- which words


def _tokens(case: TextCase, text: str, report: Report) -> list[Row]:
    since, asked = time.perf_counter(), case.asked
    some = case.victims[: asked.token_count]
    layout = layout_of(case.victim, some, shared_tokens(_tokens_of(case)))
    if not bool(layout.unknown.any(dim=1).all()):
        raise DataError("a text has no token that not all of them have; leave such texts out")
    updates = case.updates_of(case.gradients["victims"][: len(some)], text)
    iterations = max(1, round(ITERATIONS * asked.effort))
    words = find_tokens(case.victim, updates, layout, iterations=iterations, seed=asked.seed, progress=report)
    truth = [row[there].cpu().numpy() for row, there in zip(layout.ids, layout.unknown, strict=True)]
    in_place = [float((guess == true).mean()) for guess, true in zip(words.tokens, truth, strict=True)]
    stuck = float((words.truth < 0.999 * words.losses - 1e-12).mean())
    common = _common(case, text, since)
    optimised = _token_row("tokens", words.tokens, truth, asked.seed, common)
    rows = [replace(optimised, in_place=float(np.mean(in_place)), truth_fits_better=stuck)]
    since = time.perf_counter()
    solved = solve_for_tokens(case.victim, updates, layout)
    if solved is not None:
        rows.append(_token_row(SUMS, solved, truth, asked.seed, _common(case, text, since)))
    return rows


def _token_row(
    attack: str,
    guesses: Sequence[NDArray[np.int64]],
    truth: Sequence[NDArray[np.int64]],
    seed: int,
    common: dict[str, Any],
) -> Row:
    matrix = shares(guesses, truth)
    others = ~np.eye(len(matrix), dtype=bool)
    return Row(
        attack=attack,
        adversary=SERVER,
        batch=1,
        found=float(matrix.diagonal().mean()),
        chance=float(matrix[others].mean()) if len(matrix) > 1 else 0.0,
        luck=luck_of(matrix, seed),
        count=len(truth),
        **common,
    )


def _tokens_of(case: TextCase) -> list[NDArray[np.int64]]:
    """The tokens of every text, without padding."""
    batch = case.victim.store.gather(torch.arange(len(case.victim.store), device=case.victim.device))
    ids = batch[0].cpu().numpy()
    mask = batch[1].cpu().numpy().astype(bool) if len(batch) > 2 else np.ones_like(ids, dtype=bool)
    return [row[there] for row, there in zip(ids, mask, strict=True)]


_ATTACKS: dict[str, Callable[[TextCase, str, Report], list[Row]]] = {
    "sentence": _sentence,
    "label": _label,
    "tokens": _tokens,
}


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the interval of 95 % of a share, after Wilson.

    Args:
        right: how many were right.
        count: of how many.

    Example:
        >>> [round(end, 2) for end in wilson(8, 10)]
        [0.49, 0.94]

    """
    z = 1.959963984540054
    share, spread = right / count, z * z / count
    middle = share + spread / 2
    width = z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    low, high = (middle - width) / (1 + spread), (middle + width) / (1 + spread)
    return (low if right > 0 else 0.0), (high if right < count else 1.0)
