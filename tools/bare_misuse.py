"""What payloads do that a transport lets through though it should not: `python tools/bare_misuse.py` prints the table.

Bare frames show nothing of their session, round or client. Here ten clients send theirs, one of them or all are read
wrongly, and the estimate is held against the mean gradient. The table stands in docs/wire-format.md; nothing is drawn
but from fixed seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd import MPDD, BareSession, Codec, Peaks, Update, WireError
from fedmpdd.uplink.screening import Candidate, Screening

D, CLIENTS, ROUNDS, FORGERIES = 13_426, 10, 200, 5_000
MAX_VALUE, MAX_RATIO = 1e6, 1e3  # of the Flower strategy, where nothing else is said
CODECS: dict[str, Codec] = {
    "peaks, m = 7": Peaks(7),
    "one bit, m = 50": MPDD(50, bits=1, family="hadamard"),
    "float32, m = 4": MPDD(4, family="hadamard"),
}
Frames = list[tuple[bytes, int, int]]  # what is read as the frame of which round and client
Misuse = Callable[["Round"], Frames]


class Effect(NamedTuple):
    """Of an estimate: how much of the mean gradient is in it, and its error in units of a client's squared length."""

    signal: float
    error: float


@dataclass(frozen=True)
class Round:
    """The bare frames of a round and of the one before, of clients whose gradients have half their energy in common."""

    session: BareSession
    number: int
    frames: tuple[bytes, ...]
    before: tuple[bytes, ...]
    mean: NDArray[np.float64]

    @property
    def in_order(self) -> Frames:
        """Every frame as what it is."""
        return [(frame, self.number, client) for client, frame in enumerate(self.frames)]


def rounds(codec: Codec) -> list[Round]:
    """Return rounds of a session, made from fixed seeds."""
    session, rng, before, made = BareSession(codec, D, 2024), np.random.default_rng(1), (), []
    for k in range(ROUNDS + 1):
        gradients = rng.standard_normal((CLIENTS, D)) + rng.standard_normal(D)
        gradients /= np.sqrt(np.square(gradients).sum(axis=1, keepdims=True))
        keys = [session.key(k, client) for client in range(CLIENTS)]
        updates = codec.encode(gradients.astype(np.float32), keys)
        frames = tuple(session.pack(update, k, client) for client, update in enumerate(updates))
        made.append(Round(session, k, frames, before, gradients.mean(axis=0)))
        before = frames
    return made[1:]


def repeated(this: Round) -> Frames:
    """The first client's frame comes three times, and counts as often."""
    return this.in_order + 2 * this.in_order[:1]


def replayed(this: Round) -> Frames:
    """The first client's frame of the round before comes in the place of this round's."""
    return [(this.before[0], this.number, 0), *this.in_order[1:]]


def all_late(this: Round) -> Frames:
    """A round late: all frames of the round before."""
    return [(frame, this.number, client) for client, frame in enumerate(this.before)]


def misdirected(this: Round) -> Frames:
    """Every client's frame is read as that of the next one."""
    return [(frame, this.number, (client + 1) % CLIENTS) for client, frame in enumerate(this.frames)]


def forged(this: Round) -> Frames:
    """The first client's frame is replaced by the largest that any codec here lets through."""
    codec = this.session.codec
    largest = b"\xff" if isinstance(codec, Peaks) else np.float32(2.0**127).tobytes()
    return [(largest + this.frames[0][len(largest) :], this.number, 0), *this.in_order[1:]]


MISUSES: dict[str, Misuse] = {
    "none": lambda this: this.in_order,
    "one of ten is a round old": replayed,
    "one of ten counts three times": repeated,
    "all ten are read as a neighbour's": misdirected,
    "all ten are a round old": all_late,
    "one of ten is forged, as large as can be": forged,
}


def read(this: Round, frames: Frames) -> list[Update]:
    """Read frames as what they are taken for."""
    return [this.session.unpack(frame, number, client) for frame, number, client in frames]


def screened(updates: list[Update]) -> list[Update]:
    """Return the updates that are no larger than a Flower strategy takes."""
    candidates = [Candidate(client, update) for client, update in enumerate(updates)]
    kept, _ = Screening(MAX_VALUE, MAX_RATIO, weighted=False).screen(candidates, len(candidates))
    return [one.update for one in kept]


def effect(this: list[Round], misuse: Misuse, keep: Callable[[list[Update]], list[Update]] = list) -> Effect:
    """Return the mean effect of a misuse over some rounds; keep: which of the updates are decoded."""
    effects = []
    for one in this:
        estimate = one.session.codec.decode_mean(keep(read(one, misuse(one)))).astype(np.float64)
        length = float(np.square(one.mean).sum())
        effects.append((float(estimate @ one.mean) / length, float(np.square(estimate - one.mean).sum())))
    signal, error = np.mean(effects, axis=0)
    return Effect(float(signal), float(error))


def accepted(codec: Codec) -> float:
    """Return the share of random payloads of the right length that are read without a word."""
    session, rng = BareSession(codec, D, 2024), np.random.default_rng(2)
    taken = 0
    for _ in range(FORGERIES):
        try:
            session.unpack(rng.bytes(session.frame_bytes()), 0, 0)
            taken += 1
        except WireError:
            continue
    return taken / FORGERIES


def table() -> str:
    """Return the table of docs/wire-format.md."""
    made = {name: rounds(codec) for name, codec in CODECS.items()}
    lines = ["| what went wrong | " + " | ".join(f"{name}: signal, error" for name in CODECS) + " |"]
    lines.append("| --- " * (1 + len(CODECS)) + "|")
    for name, misuse in MISUSES.items():
        lines.append(f"| {name} | " + " | ".join(_words(effect(this, misuse)) for this in made.values()) + " |")
    cells = (_words(effect(this, forged, screened)) for this in made.values())
    lines.append("| the same, screened by size | " + " | ".join(cells) + " |")
    lines.append(
        "| random bytes that are read | " + " | ".join(f"{accepted(one):.0%}" for one in CODECS.values()) + " |"
    )
    return "\n".join(lines)


def _words(one: Effect) -> str:
    if one.error >= 1e4:
        return f"–, 10^{np.log10(one.error):.0f}"
    return f"{one.signal:.2f}".replace("-", "−").replace("−0.00", "0.00") + f", {one.error:.3g}"


if __name__ == "__main__":
    print(table())
