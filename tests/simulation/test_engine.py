"""Rounds: Algorithm 2, determinism, and the variations around it."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from fedmpdd import BareSession
from fedmpdd.codecs import MPDD, DeComFL, Peaks
from fedmpdd.directions import using
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.simulation import Federation, clients, make_federation, parse_config, sampling
from fedmpdd.simulation.clients import Work
from fedmpdd.simulation.engine import federation_of
from fedmpdd.simulation.replay import model_sha256
from fedmpdd.tasks.data import Partition, load
from fedmpdd.tasks.data.partition import Indices
from fedmpdd.wire.bundle import unpack_bundle

BASE: dict[str, Any] = {
    "dataset": "mnist-5k",
    "model": "logistic",
    "device": "cpu",
    "clients": 20,
    "participation": 0.5,
    "batch": 4,
    "lr": 0.2,
    "rounds": 30,
    "evaluate_every": 10,
    "codec": {"name": "mpdd", "m": 64},
}


def federation(**changes: Any) -> Federation:
    return make_federation(parse_config({**BASE, **changes}))


def train(fed: Federation, rounds: int = 5) -> bytes:
    for _ in range(rounds):
        fed.run_round()
    return fed.flat.numpy().tobytes()


def test_one_round_is_algorithm_2() -> None:
    """The same round written down plainly: sample, gradients by autograd, encode, decode, step."""
    fed = federation()
    config, x0 = fed.config, fed.flat.clone()
    images, labels = (torch.from_numpy(part) for part in load("mnist-5k").train)
    clients = sampling.sample_clients(config, 0)
    assert len(set(clients.tolist())) == 10
    keys = sampling.round_keys(config, 0, clients)
    gradients = []
    for client in clients:
        examples = fed.partition.examples_of(int(client))
        rows = torch.from_numpy(sampling.sample_batches(config, 0, np.array([client]), [examples])[0, 0])
        x = x0.clone().requires_grad_()
        inputs = (images[rows].float() / 255 - 0.1307) / 0.3081
        loss = torch.nn.functional.cross_entropy(fed.model(x, inputs), labels[rows])
        gradients.append(torch.autograd.grad(loss, x)[0].numpy())
    codec = MPDD(64)
    estimate = codec.decode_mean(codec.encode(np.stack(gradients), keys))
    metrics = fed.run_round()
    assert torch.allclose(fed.flat, x0 - 0.2 * torch.from_numpy(estimate), atol=1e-4)
    assert metrics.uplink_bytes == 10 * (4 * 64 + 8 + 8)  # scalars, seed, head and checksum
    assert metrics.payload_bytes == 10 * 4 * 64
    assert metrics.downlink_bytes == 10 * 4 * 7_850


def test_the_same_config_gives_the_same_bits_whatever_the_threads() -> None:
    expected = train(federation())
    for threads in (1, 2, 4):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with using(threads=threads):
                assert train(federation()) == expected
        finally:
            torch.set_num_threads(before)
    assert train(federation(seed=18)) != expected


def test_vectorised_and_looped_gradients_agree() -> None:
    vmap, loop = (federation(gradients=how) for how in ("vmap", "loop"))
    train(vmap, 2)
    train(loop, 2)
    assert torch.allclose(vmap.flat, loop.flat, atol=1e-5)


@pytest.mark.parametrize("keys", ["sent", "derived", "partitioned"])
def test_ways_to_choose_keys(keys: str) -> None:
    fed = federation(codec={"name": "mpdd", "m": 40, "bits": 1, "family": "hadamard", "keys": keys})
    metrics = fed.run_round()
    assert metrics.uplink_bytes == 10 * (4 + 5 + 8 + (8 if keys == "sent" else 0))
    seeds = {key.seed for key in sampling.round_keys(fed.config, 0, sampling.sample_clients(fed.config, 0))}
    assert len(seeds) == (1 if keys == "partitioned" else 10)


@pytest.mark.parametrize("keys", ["derived", "shared", "partitioned"])
def test_a_local_run_has_the_updates_of_bare_frames(keys: Any) -> None:
    """Of peaks that grow, with clients that do not answer: same keys, same updates, and payload is what they count."""
    codec = {"name": "peaks", "m": 2, "group": 16, "grows_to": 5, "grows_after": 2, "keys": keys}
    fed = federation(codec=codec, dropout=0.3, journal=True)
    session = BareSession(fed.codec, fed.model.d, sampling.session_seed(fed.config), keys=keys)
    for k in range(4):
        selected = sampling.sample_clients(fed.config, k)
        places = np.flatnonzero(sampling.survivors(fed.config, k))
        metrics = fed.run_round()
        updates = unpack_bundle(fed.bundle, session.codec_at(k), fed.model.d).updates
        numbers = (places if keys == "partitioned" else selected[places]).tolist()
        frames = [session.pack(update, k, number) for update, number in zip(updates, numbers, strict=True)]
        assert [session.unpack(frame, k, number) for frame, number in zip(frames, numbers, strict=True)] == [*updates]
        assert metrics.payload_bytes == sum(map(len, frames)) == len(places) * session.frame_bytes(k)


def test_it_learns() -> None:
    fed = federation(codec={"name": "mpdd", "m": 400}, rounds=60)
    before = fed.evaluate(fed.flat).metrics["accuracy"]
    train(fed, 60)
    assert fed.evaluate(fed.flat).metrics["accuracy"] > max(0.6, before + 0.4)


def test_accuracy_is_measured_when_it_should_be() -> None:
    fed = federation(rounds=25)
    seen = [metrics.round for _ in range(25) if (metrics := fed.run_round()).accuracy is not None]
    assert seen == [9, 19, 24]  # every ten rounds, and after the last


class Neighbours(Partition):
    """Sixty examples each, as they come."""

    def examples_of(self, client: int) -> Indices:
        return np.arange(60 * client, 60 * client + 60)


def test_a_partition_of_ones_own_trains_on_whatever_device_there_is() -> None:
    dataset = load("mnist-5k")
    config = parse_config({**BASE, "device": "auto"})
    fed = Federation(config, dataset, Neighbours(dataset.train.labels, config.clients, seed=0))
    assert fed.run_round().loss is not None
    assert fed.config.device in ("cpu", "cuda")


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_local_steps_send_the_model_difference(how: str) -> None:
    """One client, full information: the server ends where the client's own steps led."""
    changes = {"clients": 1, "participation": 1.0, "local_steps": 3, "local_lr": 0.1, "lr": 1.0, "gradients": how}
    fed = federation(**changes, codec={"name": "mpdd", "m": 7_850, "family": "hadamard"})
    x = fed.flat.clone()
    (rows,) = sampling.sample_batches(fed.config, 0, np.array([0]), [fed.partition.examples_of(0)])
    assert rows.shape == (3, 4)
    for batch in rows:
        variable = x.clone().requires_grad_()
        inputs, labels = fed.task.clients.store.gather(torch.from_numpy(batch))
        loss = torch.nn.functional.cross_entropy(fed.model(variable, inputs), labels)
        x = x - 0.1 * torch.autograd.grad(loss, variable)[0]
    fed.run_round()
    # m = d of 8,192 rows leaves an error of 4 % of the step's square.
    assert (fed.flat - x).norm() < 0.3 * (x - federation(**changes).flat).norm()


@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
def test_server_optimisers_are_pytorchs(optimiser: str) -> None:
    fed = federation(server={"optimiser": optimiser, "epsilon": 1e-8}, lr=0.01)
    parameter = torch.nn.Parameter(fed.flat.clone())
    made: torch.optim.Optimizer
    if optimiser == "momentum":
        made = torch.optim.SGD([parameter], lr=0.01, momentum=0.9)
    else:
        made = torch.optim.Adam([parameter], lr=0.01, betas=(0.9, 0.99), eps=1e-8)
    flat, step = fed.flat.clone(), fed._server.step
    for k in range(4):
        gradient = torch.randn(fed.model.d, generator=torch.Generator().manual_seed(k))
        flat = torch.from_numpy(step(flat.numpy(), gradient.numpy(), k))
        parameter.grad = gradient
        made.step()
    assert torch.allclose(flat, parameter.detach(), atol=1e-6)


def test_weighting_by_examples() -> None:
    """Dirichlet shares of classes differ in size: the weights do matter, and are the numbers of examples."""
    split = {"kind": "classes", "classes_per_client": 3, "seed": 1}
    equal, weighted = (train(federation(partition=split, clients=7, weighting=w), 1) for w in ("equal", "examples"))
    assert equal != weighted


def test_clients_that_drop_out_are_left_out_of_the_mean() -> None:
    fed = federation(dropout=0.5)
    seen = [fed.run_round() for _ in range(20)]
    assert 3 <= np.mean([metrics.clients for metrics in seen]) <= 7
    for metrics in seen:
        assert metrics.uplink_bytes == metrics.clients * (4 * 64 + 16)
        assert metrics.downlink_bytes == 10 * 4 * 7_850  # the model was sent to all of them


def test_a_round_without_answers_changes_nothing() -> None:
    fed = federation(clients=2, participation=0.5, dropout=0.9)
    while True:
        before = fed.flat.clone()
        metrics = fed.run_round()
        if metrics.clients == 0:
            break
    assert torch.equal(before, fed.flat)
    assert metrics.uplink_bytes == 0


def test_a_million_clients_start_and_run() -> None:
    fed = federation(clients=1_000_000, participation=None, clients_per_round=100)
    metrics = fed.run_round()
    assert metrics.clients == 100
    assert max(sampling.sample_clients(fed.config, 0)) > 900_000


def test_a_batch_that_a_client_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch = 5 is more than client \d+ holds \(4 examples\)"):
        federation(clients=1_000, participation=0.1, batch=5)  # four examples each


def test_a_codec_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="codec: m = 9000 hadamard directions"):
        federation(codec={"name": "mpdd", "m": 9_000, "family": "hadamard"})


def test_models_by_import_path_train() -> None:
    fed = federation(model="tests.tasks.test_models:Tiny")
    assert (fed.run_round().loss or 0) > 0


EVERY_CODEC: list[dict[str, Any]] = [
    {"name": "fedsgd"},
    {"name": "qsgd", "bits": 8},
    {"name": "topk", "k": 300},
    {"name": "topk", "k": 300, "error_feedback": True},
    {"name": "randk", "k": 2_000},
    {"name": "lp-proj", "size": 300},
    {"name": "laplace", "noise": 1e-4},
    {"name": "gaussian", "noise": 1e-4},
    {"name": "signsgd"},
    {"name": "eden", "bits": 1},
    {"name": "peaks", "m": 60, "group": 64},
    {"name": "decomfl", "m": 300, "keys": "shared"},
    {"name": "fedkseed", "m": 300, "keys": "derived"},
    {"name": "feedsign", "m": 100, "keys": "shared"},
    {"name": "ferret", "m": 300},
    {"name": "sa-fedlora", "rank": 4, "warmup": 5},
]


@pytest.mark.parametrize("codec", EVERY_CODEC, ids=lambda codec: "-".join(map(str, codec.values())))
def test_every_rival_trains(codec: dict[str, Any]) -> None:
    fed = federation(codec=codec, rounds=12, lr=0.05)
    before = fed.evaluate(fed.flat).loss
    train(fed, 12)
    assert fed.evaluate(fed.flat).loss < 0.93 * before


def test_peaks_grow_with_the_rounds() -> None:
    fed = federation(codec={"name": "peaks", "m": 4, "grows_to": 14, "grows_after": 2, "keys": "derived"})
    sizes = [fed.run_round().payload_bytes for _ in range(5)]
    assert sizes == [10 * Peaks(m).bytes_per_update(7_850) for m in (4, 4, 8, 8, 14)]


def test_zeroth_order_scalars_are_those_of_the_gradient() -> None:
    fed = federation(codec={"name": "decomfl", "m": 20, "keys": "shared"}, batch=2)
    keys = sampling.round_keys(fed.config, 0, sampling.sample_clients(fed.config, 0))
    assert len(set(keys)) == 1
    batches = sampling.sample_batches(fed.config, 0, np.arange(4), [fed.partition.examples_of(c) for c in range(4)])
    codec = fed.codec
    assert isinstance(codec, DeComFL)
    work = Work(0, np.arange(4), batches)
    slopes = fed._client_step.slopes(fed.flat, work, codec, keys[:4]).rows
    gradients = fed._client_step(fed.flat, work).rows.numpy()
    exact = np.stack([update.arrays[0] for update in codec.encode(gradients, [keys[0]] * 4)])
    assert np.allclose(slopes, exact, rtol=0.02, atol=0.02)


def test_error_feedback_survives_a_checkpoint() -> None:
    config = {"codec": {"name": "topk", "k": 50, "error_feedback": True}, "clients": 6}
    whole, cut = federation(**config), federation(**config)
    train(cut, 3)
    fresh = federation(**config)
    fresh.load_state({name: value.clone() for name, value in cut.state().items()}, 3)
    train(fresh, 3)
    assert train(whole, 6) == fresh.flat.numpy().tobytes()


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ({"name": "decomfl", "keys": "shared", "error_feedback": True}, "clients without one"),
        ({"name": "sa-fedlora", "shapes": [[1, 2]]}, "has no parameter 'shapes'"),
    ],
)
def test_codec_settings_that_make_no_sense(codec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federation(codec=codec)


@pytest.mark.parametrize("participation", [0.29, 0.57, 0.58, 0.07])
def test_participation_is_the_share_that_was_meant(participation: float) -> None:
    config = parse_config({**BASE, "clients": 100, "participation": participation})
    assert config.per_round == round(100 * participation)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codec": {"name": "mpdd", "m": 8, "error_feedback": True}}, "codec: .* grow without bound"),
        ({"clients": 333, "partition": {"kind": "classes"}, "batch": 13}, "batch = 13 is more than client"),
        ({"batch": True}, "batch = True"),
        ({"clients": "100"}, "clients = '100'"),
        ({"rounds": 2.5}, "rounds = 2.5"),
        ({"codec": {"name": "sa-fedlora", "warmup": 1.5}}, "warmup = 1.5"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_round(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federation(**changes)


@pytest.mark.parametrize("codec", EVERY_CODEC, ids=lambda codec: "-".join(map(str, codec.values())))
def test_no_codec_depends_on_the_threads_of_libraries(codec: dict[str, Any]) -> None:
    """NumPy's matrix products round differently with the number of BLAS threads; codecs must not."""
    threadpoolctl = pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed")
    outcomes = set()
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(threads):
            outcomes.add(train(federation(codec=codec, participation=0.2), 2))
    assert len(outcomes) == 1


PROTECTED: dict[str, Any] = {"name": "mpdd", "m": 64, "clip": 2.0, "noise_multiplier": 0.1}


def test_noise_is_a_pure_function_of_seed_round_and_client() -> None:
    """The same bits again, and after a checkpoint; other bits with another seed, and without noise."""
    whole = federation(codec=PROTECTED)
    expected = train(whole, 6)
    first, second = federation(codec=PROTECTED), federation(codec=PROTECTED)
    train(first, 3)
    second.load_state(first.state(), 3)
    assert train(second, 3) == expected
    assert train(federation(codec=PROTECTED, seed=18), 6) != expected
    assert train(federation(codec={**PROTECTED, "noise_multiplier": 0.0}), 6) != expected


def test_noise_of_two_rounds_and_two_clients_differs() -> None:
    config = federation(codec=PROTECTED).config
    clients = np.array([3, 4])
    draws = [source.random() for k in (0, 1) for source in sampling.noise_sources(config, k, clients)]
    assert len(set(draws)) == 4
    assert draws[1] == sampling.noise_sources(config, 0, clients[1:])[0].random()


def test_a_round_sends_clipped_and_noisy_scalars() -> None:
    """Frames are those of the codec, no longer; and the server decodes what Private encodes."""
    fed, plain = federation(codec=PROTECTED), federation()
    metrics, unprotected = fed.run_round(), plain.run_round()
    assert (metrics.uplink_bytes, metrics.payload_bytes) == (unprotected.uplink_bytes, unprotected.payload_bytes)
    assert not torch.equal(fed.flat, plain.flat)
    generous = federation(codec={**PROTECTED, "clip": 1e6, "noise_multiplier": 0.0})
    generous.run_round()
    assert torch.equal(generous.flat, plain.flat)


def test_a_coarse_scale_in_the_engine() -> None:
    one_bit = {"name": "mpdd", "m": 64, "bits": 1}
    assert train(federation(codec={**one_bit, "scale_grid": 2.0})) != train(federation(codec=one_bit))


def test_the_busiest_client_is_counted() -> None:
    config = federation().config
    counts = np.zeros(20, dtype=int)
    for k in range(config.rounds):
        counts[sampling.sample_clients(config, k)] += 1
    assert sampling.most_participations(config) == counts.max() < config.rounds
    everybody = config.model_copy(update={"participation": 1.0})
    assert sampling.most_participations(everybody) == config.rounds
    endless = config.model_copy(update={"rounds": 2**31})
    assert sampling.most_participations(endless) == 2**31


@pytest.mark.parametrize(
    "changes",
    [
        {"server": {"control": 0.1}, "downlink": "replay"},
        {"codec": {"name": "mpdd", "m": 4, "memory": "control"}},
        {"codec": {"name": "mpdd", "m": 4, "memory": "damped"}},
        {"evaluate_mean": 0.9},
    ],
    ids=["control", "variates", "damped", "mean"],
)
def test_what_was_dropped_is_read_and_not_trained(changes: dict[str, Any]) -> None:
    config = parse_config({**BASE, **changes})
    assert parse_config(config.model_dump(mode="json")).codec == config.codec
    with pytest.raises(ConfigError, match=r"was dropped: .* fedmpdd 0\.1\.0 could train, resume and replay"):
        make_federation(config)


def test_settings_that_were_not_in_use_do_no_harm() -> None:
    unused = {"server": {"control": None}, "evaluate_mean": None, "codec": {"name": "mpdd", "m": 4, "memory": None}}
    assert make_federation(parse_config({**BASE, **unused})).next_round == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codec": {"name": "mpdd", "m": 4, "error_feedback": True, "clip": 1.0}}, "takes back"),
        ({"codec": {"name": "mpdd", "m": 4, "error_feedback": True}}, "grow without bound"),
    ],
)
def test_memories_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        federation(**changes)


EVERY_PATH = {
    "mpdd": {"codec": {"name": "mpdd", "m": 16}},
    "weighted": {"codec": {"name": "mpdd", "m": 16, "bits": 4, "keys": "derived"}, "weighting": "examples"},
    "mean": {"codec": {"name": "mpdd", "m": 16, "bits": 1, "keys": "shared"}, "downlink_bits": 8},
    "protected": {"codec": {"name": "mpdd", "m": 16, "clip": 1.0, "noise_multiplier": 1.0}},
    "feedback": {"codec": {"name": "topk", "k": 9, "error_feedback": True}},
    "peaks": {"codec": {"name": "peaks", "m": 4, "grows_to": 8, "grows_after": 1, "keys": "partitioned"}},
    "forward": {"client": "forward", "codec": {"name": "peaks", "m": 1, "group": 8}},
    "qsgd": {"codec": {"name": "qsgd", "bits": 4}},
    "robust": {"codec": {"name": "mpdd", "m": 16, "keys": "shared"}, "robust": {}},
    "fedkseed": {"codec": {"name": "fedkseed", "m": 4, "bits": 8}, "local_steps": 2, "local_lr": 0.01},
    "fedkseed, mean": {"codec": {"name": "fedkseed", "m": 4, "keys": "shared"}, "downlink_bits": 8},
    "fedkseed, protected": {"codec": {"name": "fedkseed", "m": 4, "clip": 1.0, "noise_multiplier": 1.0}},
    "feedsign": {"codec": {"name": "feedsign", "m": 4, "keys": "shared"}},
    "ferret": {"codec": {"name": "ferret", "m": 20, "keys": "partitioned"}, "local_steps": 2, "local_lr": 0.1},
    "feedsign, mean": {"codec": {"name": "feedsign", "m": 4, "keys": "shared"}, "downlink_bits": 1},
    "feedsign, robust": {"codec": {"name": "feedsign", "m": 4, "keys": "shared"}, "robust": {}},
}


@pytest.mark.parametrize("changes", EVERY_PATH.values(), ids=EVERY_PATH.keys())
def test_frames_change_no_number(changes: dict[str, Any]) -> None:
    """Whether updates become frames that are checked and read again, or not: the same models, and as many bytes."""
    config, data = parse_config({**BASE, "rounds": 3, **changes}), load("mnist-5k")
    without, with_frames = federation_of(config, data), federation_of(config, data, frames=True)
    for _ in range(3):
        ours, theirs = without.run_round(), with_frames.run_round()
        assert (ours.uplink_bytes, ours.payload_bytes) == (theirs.uplink_bytes, theirs.payload_bytes)
        assert torch.equal(without.flat, with_frames.flat)


GROUPED = {
    "mpdd": {"codec": {"name": "mpdd", "m": 16}},
    "partitioned": {"codec": {"name": "mpdd", "m": 16, "bits": 1, "family": "hadamard", "keys": "partitioned"}},
    "shared": {"codec": {"name": "mpdd", "m": 16, "bits": 4, "family": "hadamard", "keys": "shared"}},
    "mean": {"codec": {"name": "mpdd", "m": 16, "keys": "shared"}, "downlink": "replay", "downlink_bits": 4},
    "protected": {"codec": {"name": "mpdd", "m": 16, "clip": 1.0, "noise_multiplier": 1.0}},
    "peaks": {"codec": {"name": "peaks", "m": 4, "keys": "derived"}},
    "qsgd": {"codec": {"name": "qsgd", "bits": 4}},
    "topk": {"codec": {"name": "topk", "k": 9}},
    "randk": {"codec": {"name": "randk", "k": 9}},
    "signsgd": {"codec": {"name": "signsgd"}},
    "eden": {"codec": {"name": "eden", "bits": 2}},
    "lp-proj": {"codec": {"name": "lp-proj", "size": 9}},
    "sa-fedlora": {"codec": {"name": "sa-fedlora"}},
    "gaussian": {"codec": {"name": "gaussian", "noise": 0.1}},
    "laplace": {"codec": {"name": "laplace", "noise": 0.1}},
    "fedsgd": {"codec": {"name": "fedsgd"}, "weighting": "examples", "dropout": 0.3},
    "decomfl": {"codec": {"name": "decomfl", "m": 4, "keys": "shared"}},
    "decomfl, steps": {
        "codec": {"name": "decomfl", "m": 4, "keys": "shared"},
        "local_steps": 2,
        "local_lr": 0.01,
    },
    "fedkseed": {"codec": {"name": "fedkseed", "m": 4, "keys": "derived"}, "local_steps": 4, "local_lr": 0.01},
    "fedkseed, forward": {"client": "forward", "codec": {"name": "fedkseed", "m": 4, "keys": "derived"}},
    "feedsign": {"codec": {"name": "feedsign", "m": 4, "keys": "shared"}},
    "ferret": {"codec": {"name": "ferret", "m": 20, "keys": "partitioned"}, "local_steps": 2, "local_lr": 0.1},
    "forward": {"client": "forward"},
    "forward, shared": {"client": "forward", "codec": {"name": "mpdd", "m": 16, "keys": "shared"}},
    "local steps": {"local_steps": 2, "local_lr": 0.1},
    "loop": {"batch": 32},
    "feedback": {"codec": {"name": "topk", "k": 9, "error_feedback": True}},
    "secure": {"codec": {"name": "mpdd", "m": 16, "keys": "shared"}, "secure": {"clip": 1.0, "noise_multiplier": 0.5}},
}


@pytest.mark.parametrize("changes", GROUPED.values(), ids=GROUPED.keys())
def test_rounds_in_groups_have_the_bits_of_rounds_at_once(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """60 clients in vectorised calls of 25: one group of all, against three groups of a call each."""
    settings = {"clients": 60, "participation": 1.0, **changes}
    whole, cut = federation(**settings), federation(**settings)
    first = [whole.run_round() for _ in range(2)]
    monkeypatch.setattr(clients, "GROUP_BYTES", 1)
    count = len(list(cut._client_step.groups(60)))
    assert count >= 3
    second = [cut.run_round() for _ in range(2)]
    assert cut.flat.numpy().tobytes() == whole.flat.numpy().tobytes()
    for one, other in zip(first, second, strict=True):
        assert (one.loss, one.uplink_bytes, one.payload_bytes) == (other.loss, other.uplink_bytes, other.payload_bytes)


MANY_CLIENTS = """
import resource
from fedmpdd.simulation import make_federation, parse_config
federation = make_federation(parse_config({
    "dataset": "mnist-5k", "model": "logistic", "device": "cpu", "clients": 5_001, "batch": 64, "rounds": 1,
    "evaluate_every": 1_000_000, "codec": {"name": "mpdd", "m": 16}, "lr": 0.1,
}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
federation.run_round()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="kilobytes of memory are counted as Linux does")
def test_memory_does_not_grow_with_the_images_of_a_round() -> None:
    """5,001 clients with 64 images each: 1 GB as floats, and 157 MB of gradients, which are fewer than a group."""
    result = subprocess.run(
        [sys.executable, "-c", MANY_CLIENTS], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 500  # MiB


def test_a_journal_may_begin_with_another_model() -> None:
    fed = federation()
    other = torch.full_like(fed.flat, 0.25)
    fed.begin_at(other)
    assert torch.equal(fed.flat, other)
    assert fed.journal_header.model_sha256 == model_sha256(other)
    with pytest.raises(RunError, match="3 parameters came, expected 7850"):
        fed.begin_at(torch.zeros(3))
