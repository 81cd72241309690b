"""Bytes that others read: frames, bundles, records, messages, steps and samples, each as one short hash.

All but the factors of SA-FedLora depend on no machine; that codec needs LAPACK, so that it is all computed portably.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd import Key, Session, derive_seed, pack, partitioned_keys
from fedmpdd.codecs import MPDD, Codec, Update
from fedmpdd.secure_sum import FixedPoint, Terms, messages, primitives
from fedmpdd.secure_sum.client import pair_mask, seed_digest, self_mask
from fedmpdd.server.journal import Header, Record
from fedmpdd.server.step import Step, StepRule
from fedmpdd.simulation import parse_config, sampling
from fedmpdd.uplink.protection import Protection
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.catch_up import CatchUp
from tests.codecs.table import CODECS_UNDER_TEST, D, label

SEED = 0x0123456789ABCDEF
KEYS: dict[str, list[Key]] = {
    "seeds": [Key(SEED), Key(7), Key(2**64 - 1)],
    "slots": partitioned_keys(SEED, 3),
    "one": [Key(SEED)] * 3,
}
WEIGHTS = (1.0, 2.5, 1e-3)


def digest(*parts: bytes) -> str:
    """Return the first half of the SHA-256 of some bytes, their lengths included."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()[:32]


def gradients(d: int = D) -> NDArray[np.float32]:
    """Three gradients: spread, one tail and mostly zero."""
    rng = np.random.default_rng(99)
    rows = rng.standard_normal((3, d)) * [[1.0], [1e-3], [40.0]]
    rows[1] **= 3
    rows[2, ::3] = 0
    return rows.astype(np.float32)


def frames() -> dict[str, str]:
    """Hashes of frames, compact frames, bundles and decoded means, of every codec with every kind of keys."""
    rows = {}
    for codec in CODECS_UNDER_TEST:
        for kind, keys in KEYS.items():
            updates = codec.encode(gradients(), keys)
            rows[f"{label(codec)} {kind}"] = digest(*_bytes_of(codec, updates, kind))
    return rows


def _bytes_of(codec: Codec, updates: list[Update], kind: str) -> Iterable[bytes]:
    for update in updates:
        if codec.self_contained:
            yield pack(update)
        yield Session(codec, D, sends_seed=False).pack(update)
        if kind == "seeds":
            yield Session(codec, D, sends_seed=True).pack(update)
    yield Bundle(tuple(updates)).pack()
    yield Bundle(tuple(updates), WEIGHTS).pack()
    yield codec.decode_mean(updates).tobytes()
    yield codec.decode_mean(updates, WEIGHTS).tobytes()


def means() -> dict[str, str]:
    """Hashes of means of updates with one key, and of protected updates with a seeded source of noise."""
    rows = {}
    for codec in (MPDD(24), MPDD(24, 8), MPDD(24, 1, "hadamard")):
        updates = codec.encode(gradients(), KEYS["one"])
        for bits in (32, 16, 8, 4, 1):
            mean = codec.mean_update(updates, bits, WEIGHTS)
            rows[f"{label(codec)} mean of {bits} bits"] = digest(pack(mean))
        noise = [np.random.default_rng(seed) for seed in range(3)]
        protected = Protection(codec, clip=2.0, noise_multiplier=0.3).encode(gradients(), KEYS["one"], noise).updates()
        rows[f"{label(codec)} with noise"] = digest(*map(pack, protected))
    return rows


def steps() -> dict[str, str]:
    """Hashes of models after three server steps."""
    rows = {}
    for rule in (StepRule(), StepRule("momentum"), StepRule("adam")):
        step = Step(rule, 0.1, lambda: np.zeros(D, np.float32))
        flat = gradients()[0]
        for k, gradient in enumerate(gradients()):
            flat = step(flat, gradient, k)
        rows[f"{rule.optimiser} None"] = digest(flat.tobytes(), *(v.tobytes() for v in step.state.values()))
    return rows


def journal() -> dict[str, str]:
    """Hashes of the records of a journal and of messages to catch up with."""
    update = MPDD(24).encode(gradients()[:1], [Key(SEED)])[0]
    bundle = Bundle((update,)).pack()
    header = Header(D, (1, 2, 3), 4, "ab" * 32, {"lr": 0.1, "codec": {"name": "mpdd", "m": 24}})
    record = Record(7, bundle, "cd" * 32, {"round": 7, "loss": None, "clients": 1})
    vectors = (gradients()[0], gradients()[1])
    late: CatchUp[Any] = CatchUp(7, (bundle, Bundle().pack()))
    whole: CatchUp[Any] = CatchUp(7, (), vectors)
    new: CatchUp[Header] = CatchUp(0, (bundle,), (), header)
    return {
        "record": digest(record.pack()),
        "catch-up with bundles": digest(late.pack()),
        "catch-up with a model": digest(whole.pack()),
        "catch-up with a header": digest(new.pack()),
    }


def samples() -> dict[str, str]:
    """Hashes of who takes part, with which examples, keys and noise."""
    rows = {}
    for keys in ("sent", "derived", "partitioned", "shared"):
        config = parse_config({"clients": 50, "participation": 0.3, "dropout": 0.2, "codec": {"m": 4, "keys": keys}})
        parts = []
        for k in (0, 1, 77):
            clients = sampling.sample_clients(config, k)
            parts += [clients.tobytes(), sampling.survivors(config, k).tobytes()]
            parts += [str(sampling.round_keys(config, k, clients)).encode()]
            parts += [sampling.sample_batches(config, k, np.array([3]), [np.arange(100, 140)]).tobytes()]
            parts += [source.standard_normal(5).tobytes() for source in sampling.noise_sources(config, k, clients)]
        rows[keys] = digest(str(sampling.model_seed(config)).encode(), *parts)
    rows["derived seeds"] = digest(str([derive_seed(SEED, k, c) for k in (0, 9) for c in (0, 2**63)]).encode())
    return rows


def secure_sums() -> dict[str, str]:
    """Hashes of terms, masks and numbers of a secure sum."""
    rows = {}
    for neighbours in (0, 4):
        terms = Terms(bytes(range(16)), 3, 9, 20, ring_bits=24, neighbours=neighbours)
        secrets = [bytes([client]) * 32 for client in range(1, 3)]
        public = primitives.public_of(secrets[1])
        rows[f"{neighbours} neighbours"] = digest(
            messages.write_terms(terms),
            str([terms.holders(client) for client in range(9)]).encode(),
            messages.write_set([0, 3, 8], 9),
            seed_digest(terms, 1, secrets[0]),
            terms.ring.pack(self_mask(terms, 1, secrets[0])),
            terms.ring.pack(pair_mask(terms, 1, 2, secrets[0], public)),
        )
    fixed = FixedPoint(3.0, 32, 1e-6)
    rows["fixed point"] = digest(fixed.encode(gradients()[1:2].astype(np.float64), 9).tobytes())
    return rows


PARTS: dict[str, Callable[[], dict[str, str]]] = {
    "frames": frames,
    "means": means,
    "steps": steps,
    "journal": journal,
    "samples": samples,
    "secure sums": secure_sums,
}


def main(path: str) -> None:
    """Write all hashes to a file, as JSON."""
    os.environ.setdefault("FEDMPDD_THREADS", "1")
    Path(path).write_text(json.dumps({name: part() for name, part in PARTS.items()}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
