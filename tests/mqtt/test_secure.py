"""Secure sums over MQTT: phases without a network, and over a real broker."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("cryptography", reason="the extra `privacy` is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

from fedmpdd.codecs import MPDD
from fedmpdd.errors import ConfigError, OrderError, RunError, SecureSumError
from fedmpdd.mqtt import Broker, Client, Server
from fedmpdd.mqtt.connection import Connection
from fedmpdd.mqtt.follower import model_sha256
from fedmpdd.mqtt.gatherer import Counted
from fedmpdd.mqtt.messages import Contribution
from fedmpdd.mqtt.secure import (
    ATTEMPT_BITS,
    SumGatherer,
    decline,
    round_of,
    sum_number,
    sum_terms,
    sum_uplink,
    training_of,
)
from fedmpdd.mqtt.secure_client import Members, RoundLedger
from fedmpdd.mqtt.terms import Terms
from fedmpdd.secure_sum import FileLedger, MemoryLedger, Phase, bytes_up, read_terms
from fedmpdd.secure_sum.messages import Kind, kind_of, tag_of
from fedmpdd.simulation import federation_of, parse_config
from fedmpdd.simulation.secure import SummedUplink
from fedmpdd.uplink import SecureRounds
from fedmpdd.uplink.arrivals import Arrivals
from fedmpdd.uplink.policy import ClientPolicy
from tests.mqtt.mosquitto import Mosquitto, need_mosquitto
from tests.mqtt.summand import CLIENTS, MODEL, TARGETS, D, gradient
from tests.simulation.test_cuda import images

Float32 = NDArray[np.float32]
Message = tuple[int | None, bytes]

M = 40
QUIET = SecureRounds(clip=20.0)  # so wide that nothing is clipped
SPARE = 3  # of ten clients may be gone by QUIET
CODEC = {"name": "mpdd", "m": M, "family": "hadamard"}
BRIEF = Arrivals(wait=0.2)  # for those who never answer; what came by then counts, however slow the machine is


def make_terms(secure: SecureRounds = QUIET, **changes: Any) -> Terms:
    values: dict[str, Any] = {
        "codec": CODEC,
        "shapes": ((D,),),
        "seed": 7,
        "clients": CLIENTS,
        "per_round": CLIENTS,
        "keys": "shared",
        "lr": 0.1,
        "rounds": 20,
        "arrivals": BRIEF,
        "secure": vars(secure),
        "model_sha256": model_sha256(MODEL),
    }
    return Terms(**{**values, **changes})


def simulated_sum(terms: Terms, clients: Sequence[int], round_number: int = 0, flat: Float32 = MODEL) -> list[int]:
    """The sum that the local engine has of these clients, without noise."""
    assert terms.sums is not None
    uplink = SummedUplink(terms.sums, terms.session.codec, terms.d, terms.per_round, terms.mean_bits)
    gradients = np.stack([gradient(flat, round_number, client) for client in clients])
    uploads = uplink.encode(round_number, gradients, [terms.key(round_number, one) for one in clients], clients)
    total = uploads.elements.sum(axis=0, dtype=np.uint64)
    return [int(value) % 2**terms.sums.ring_bits for value in total]


class Paper:
    """A server and its clients without a network: messages go from hand to hand, and can be kept from it.

    Args:
        terms: of the training.
        policy: of all clients.
        lets: whether a client is sent what opens a phase; by default it always is.
        changes: what becomes of an answer, a list of answers; by default itself.

    """

    def __init__(
        self,
        terms: Terms,
        policy: ClientPolicy | None = None,
        lets: Callable[[int, bytes], bool] = lambda client, message: True,
        changes: Callable[[int, bytes], list[bytes]] = lambda client, answer: [answer],
    ) -> None:
        from fedmpdd.mqtt.client import GradientEncoder

        self.terms, self.lets, self.changes = terms, lets, changes
        encoder = GradientEncoder(terms, gradient)
        self.members = [Members("paper", terms, encoder, policy or ClientPolicy()) for _ in range(terms.clients)]
        self.server = SumGatherer("paper", terms, self.send)
        self.sent: list[Message] = []
        self.came: list[tuple[int, bytes]] = []
        self.round = 0

    def send(self, messages: Sequence[Message]) -> None:
        self.sent += messages
        for to, message in messages:
            for client in range(self.terms.clients) if to is None else [to]:
                if self.lets(client, message):
                    self.hand_over(client, message)

    def hand_over(self, client: int, message: bytes) -> None:
        self.members[client].hear(client, message)
        for number, answer in self.members[client].answers(self.round, MODEL):
            for data in self.changes(number, answer):
                self.came.append((number, data))
                self.server.receive(number, data)

    def hold(self, round_number: int = 0) -> Counted:
        self.round = round_number
        self.server.open(round_number)
        return self.server.wait()


def gone(clients: Sequence[int], kind: Kind) -> Callable[[int, bytes], bool]:
    """Some clients never get messages of this kind, nor of any that come after."""
    return lambda client, message: client not in clients or kind_of(message) < kind


OPENS = {"advertise": Kind.TERMS, "share": Kind.KEYS, "mask": Kind.INBOX, "unmask": Kind.SURVIVORS}


@pytest.mark.parametrize("phase", OPENS)
def test_who_vanishes_in_a_phase_leaves_the_exact_sum_of_the_others(phase: str) -> None:
    away = [2, 9]
    paper = Paper(make_terms(), lets=gone(away, OPENS[phase]))
    counted = paper.hold()
    stayed = [one for one in range(CLIENTS) if one not in away or phase == "unmask"]
    assert counted.contributions == tuple(map(Contribution, stayed))
    assert counted.total is not None
    assert counted.total.tolist() == simulated_sum(paper.terms, stayed)


@pytest.mark.parametrize("phase", [phase for phase in OPENS if phase != "advertise"])
def test_a_round_that_too_few_stay_in_adds_nothing_and_the_next_one_does(
    phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    paper = Paper(make_terms(), lets=gone(range(SPARE + 1), OPENS[phase]))
    counted = paper.hold(0)
    assert (counted.contributions, counted.updates, counted.total) == ((), [], None)
    assert counted.nbytes > 0
    assert "the model stays as it is" in caplog.text
    paper.lets = lambda client, message: True
    assert len(paper.hold(1).contributions) == CLIENTS


def test_the_bytes_are_those_of_the_protocol() -> None:
    paper = Paper(make_terms())
    counted = paper.hold()
    protocol = read_terms(paper.sent[0][1])
    told = sum(kind_of(answer) == Kind.UNMASKED for _, answer in paper.came)
    assert told == CLIENTS
    # Shares beyond the threshold are not waited for.
    assert counted.nbytes == CLIENTS * sum(bytes_up(protocol)[:-1]) + protocol.threshold * bytes_up(protocol)[-1]


def test_clients_of_a_sample_have_the_numbers_of_their_places() -> None:
    paper = Paper(make_terms(per_round=5, sampling_seed=3))
    asked = paper.terms.sample(4).tolist()
    assert asked != list(range(5))
    counted = paper.hold(4)
    assert [one.client for one in counted.contributions] == asked
    assert counted.total is not None
    assert counted.total.tolist() == simulated_sum(paper.terms, asked, 4)


def test_noise_is_each_clients_and_drawn_anew() -> None:
    """Two sums of the same gradients differ nearly everywhere: three equal numbers of 40 come once in 10^12 runs."""
    terms = make_terms(SecureRounds(clip=20.0, noise_multiplier=0.1))
    totals = [Paper(terms).hold().total for _ in range(2)]
    assert totals[0] is not None
    assert totals[1] is not None
    assert np.count_nonzero(totals[0] == totals[1]) < 3


def test_a_message_of_an_earlier_round_is_ignored_and_answered_by_nobody() -> None:
    paper = Paper(make_terms())
    paper.hold(0)
    earlier, answers = list(paper.sent), list(paper.came)
    inboxes = []

    def lets(client: int, message: bytes) -> bool:
        if client == 0 and kind_of(message) == Kind.INBOX:
            before = len(paper.came)
            for to, old in earlier:
                if to in (None, 0):
                    paper.hand_over(0, old)
            inboxes.append(len(paper.came) - before)
            for old_client, old in answers:
                paper.server.receive(old_client, old)
        return True

    paper.lets = lets
    counted = paper.hold(1)
    assert inboxes == [0]
    assert paper.server.late == len(answers) + SPARE  # who told shares when enough had
    assert counted.total is not None
    assert counted.total.tolist() == simulated_sum(paper.terms, range(CLIENTS), 1)


def test_the_ledger_refuses_what_a_client_that_forgot_would_answer(tmp_path: Path) -> None:
    """A client that was killed in a round and started anew has no part in what comes of it, and one in the next."""
    terms = make_terms()
    policy = ClientPolicy(ledger=lambda number: FileLedger(tmp_path / f"{number}.json"))
    paper = Paper(terms, policy)

    def lets(client: int, message: bytes) -> bool:
        if client == 4 and kind_of(message) == Kind.INBOX:
            paper.members[4] = Paper(terms, policy).members[4]
            paper.hand_over(4, paper.sent[0][1])  # what is retained comes to whoever connects
        return True

    paper.lets = lets
    counted = paper.hold(0)
    assert [one.client for one in counted.contributions] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert counted.total is not None
    assert counted.total.tolist() == simulated_sum(terms, [0, 1, 2, 3, 5, 6, 7, 8, 9])
    paper.lets = lambda client, message: True
    assert len(paper.hold(1).contributions) == CLIENTS


def test_messages_of_a_wrong_phase_are_ignored_by_both_sides() -> None:
    paper = Paper(make_terms())
    wrong = {"server": 0, "client": 0}

    def lets(client: int, message: bytes) -> bool:
        if client == 0 and kind_of(message) == Kind.INBOX:  # before it masks, who stayed is asked of it
            before = len(paper.came)
            survivors = message[:5] + bytes([Kind.SURVIVORS]) + b"\xff\xff" + message[8:16] + b"\xff\x03"
            paper.hand_over(0, survivors)
            wrong["client"] += len(paper.came) - before
            advertised = next(answer for number, answer in paper.came if number == 1)
            paper.server.receive(1, advertised)  # long past
            wrong["server"] += 1
        return True

    paper.lets = lets
    counted = paper.hold()
    assert wrong == {"server": 1, "client": 0}
    assert sum(paper.server.drops.values()) == 1
    assert counted.total is not None
    assert counted.total.tolist() == simulated_sum(paper.terms, range(CLIENTS))


@pytest.mark.parametrize("data", [b"", b"\0", b"\0abc", b"FMPS", b"FMPS" + bytes(40), os.urandom(200)])
def test_bytes_that_are_no_message_stop_nobody(data: bytes) -> None:
    paper = Paper(make_terms(), changes=lambda client, answer: [data, answer, answer])
    paper.members[3].hear(3, data)
    counted = paper.hold()
    assert len(counted.contributions) == CLIENTS
    assert paper.server.duplicates > 0


def test_who_was_not_asked_has_no_part() -> None:
    paper = Paper(make_terms(per_round=5))
    stranger = next(one for one in range(CLIENTS) if one not in paper.terms.sample(0))
    paper.server.receive(stranger, b"FMPS" + bytes(40))
    assert stranger not in [one.client for one in paper.hold().contributions]
    assert paper.server.drops["it was not asked in that round"] == 1


def test_a_server_that_asks_again_gets_the_same_answer() -> None:
    """A client has told nothing twice: its answer is kept, and the bytes are the same."""
    paper = Paper(make_terms())
    paper.hold()
    (told,) = [answer for client, answer in paper.came if client == 5 and kind_of(answer) == Kind.UNMASKED]
    before = len(paper.came)
    paper.hand_over(5, next(message for to, message in reversed(paper.sent) if to == 5))
    assert paper.came[before:] == [(5, told)]


# ------------------------------------------------------------------------------------- a server that was killed


class KilledError(Exception):
    """The server is gone."""


def killed_at(paper: Paper, kind: Kind, count: int) -> None:
    """Hold a round until so many answers of a kind came, and forget the server."""

    def changes(client: int, answer: bytes) -> list[bytes]:
        if sum(kind_of(data) == kind for _, data in paper.came) >= count:
            raise KilledError
        return [answer]

    paper.changes = changes
    with pytest.raises(KilledError):
        paper.hold()
    paper.server = SumGatherer("paper", paper.terms, paper.send)
    paper.changes = lambda client, answer: [answer]


def next_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 1)


@pytest.mark.parametrize("kind", [Kind.ADVERTISED, Kind.SHARES, Kind.MASKED])
def test_a_killed_server_begins_the_round_again(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = Paper(make_terms())
    killed_at(paper, kind, 5)
    next_second(monkeypatch)
    counted = paper.hold()
    assert len(counted.contributions) == CLIENTS
    assert counted.total is not None
    assert counted.total.tolist() == simulated_sum(paper.terms, range(CLIENTS))


def test_no_second_sum_of_a_round_can_be_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who told shares has no part in another sum of the round, and so many must have told that too few are left."""
    paper = Paper(make_terms())
    threshold = QUIET.threshold(CLIENTS)
    killed_at(paper, Kind.UNMASKED, threshold)
    next_second(monkeypatch)
    counted = paper.hold(0)
    assert counted.contributions == ()
    assert sum(data[:1] == b"\0" for _, data in paper.came) == threshold + 1  # the last told a server that was gone
    assert len(paper.hold(1).contributions) == CLIENTS


def test_with_neighbours_who_sent_a_masked_vector_is_out() -> None:
    uplink, run = sum_uplink(make_terms()), bytes(16)
    for neighbours, last, refused in ((0, Phase.MASK, False), (0, Phase.UNMASK, True), (4, Phase.SHARE, False)):
        assert_refusal(uplink.terms(run, sum_number(3, 5), neighbours=neighbours), last, refused=refused)
    assert_refusal(uplink.terms(run, sum_number(3, 5), neighbours=4), Phase.MASK, refused=True)


def assert_refusal(first: Any, last: Phase, *, refused: bool) -> None:
    """Whether a client that answered up to a phase may advertise for another sum of the round."""
    ledger = RoundLedger(MemoryLedger(), first.run)
    for phase in (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK):
        ledger.take(first, phase)
        if phase == last:
            break
    again = type(first).from_bytes(
        first.to_bytes()[:16] + (first.round + 1).to_bytes(8, "little") + first.to_bytes()[24:]
    )
    if refused:
        with pytest.raises(SecureSumError, match="a vector is summed once"):
            ledger.check(again, Phase.ADVERTISE)
    else:
        ledger.check(again, Phase.ADVERTISE)
    later = type(first).from_bytes(
        first.to_bytes()[:16] + sum_number(4, 0).to_bytes(8, "little") + first.to_bytes()[24:]
    )
    ledger.check(later, Phase.ADVERTISE)


def test_numbers_of_sums_rise_with_rounds_and_within_them() -> None:
    numbers = [sum_number(0, 5), sum_number(0, 6), sum_number(1, 0), sum_number(2**32 - 3, 2**40 + 1)]
    assert numbers == sorted(numbers)
    assert [round_of(number) for number in numbers] == [0, 0, 1, 2**32 - 3]
    assert max(numbers) < 2 ** (2 * ATTEMPT_BITS)


def test_the_run_follows_from_name_and_terms_but_not_from_what_may_change() -> None:
    terms = make_terms()
    assert training_of("a", terms) == training_of("a", make_terms(rounds=300, arrivals=Arrivals(wait=9.0)))
    others = {training_of("b", terms), training_of("a", make_terms(seed=8)), training_of("a", make_terms(lr=0.2))}
    assert len({training_of("a", terms), *others}) == 4


# ------------------------------------------------------------------------------------------ what is insisted on


def test_clients_that_decline_are_not_waited_for_and_the_server_says_why() -> None:
    """In two rounds one after the other too few would take part, for reasons that the next will not change."""
    paper = Paper(make_terms(arrivals=Arrivals(wait=1e6)), ClientPolicy(codecs=["peaks"]))
    assert paper.hold(0).contributions == ()
    with pytest.raises(RunError, match="this client allows peaks"):
        paper.hold(1)


def test_one_that_declines_leaves_the_sum_of_the_others() -> None:
    paper = Paper(make_terms(arrivals=Arrivals(wait=1e6)))

    def changes(client: int, answer: bytes) -> list[bytes]:
        return [decline(tag_of(answer), "no more")] if client == 6 and kind_of(answer) == Kind.MASKED else [answer]

    paper.changes = changes
    counted = paper.hold()
    assert [one.client for one in counted.contributions] == [0, 1, 2, 3, 4, 5, 7, 8, 9]


def test_a_client_refuses_a_training_of_sums_that_are_too_small() -> None:
    with pytest.raises(OrderError, match="insists on 8"):
        Paper(make_terms(), ClientPolicy(fewest_clients=8))
    with pytest.raises(OrderError, match="insists on 3 that are not among 5 colluders"):
        Paper(make_terms(), ClientPolicy(colluders=5))


def test_terms_of_a_sum_that_do_not_follow_from_the_trainings_are_declined() -> None:
    terms = make_terms()
    paper = Paper(terms)
    uplink, run = sum_uplink(terms), training_of("paper", terms)
    for other in (
        uplink.terms(run, sum_number(0, 9), threshold=6),
        uplink.terms(bytes(16), sum_number(0, 9), threshold=7),
        sum_terms(uplink, run, sum_number(0, 9), make_terms(SecureRounds(clip=20.0, dropouts=0.1))),
    ):
        from fedmpdd.secure_sum import SecureServer

        before = len(paper.came)
        paper.hand_over(0, SecureServer(other).open())
        (answer,) = paper.came[before:]
        assert b"not those that follow" in answer[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arrivals": Arrivals(max_age=1)}, "max_age|derived"),
        ({"arrivals": Arrivals(enough=6)}, "arrivals.enough = 6 with secure: a sum takes 7 of 10"),
        ({"keys": "derived"}, "secure needs codec"),
        ({"codec": {"name": "peaks", "m": 4, "group": 8}}, "secure needs codec"),
        ({"per_round": 1}, "no sum"),
        ({"secure": SecureRounds(clip=1.0, neighbours=2)}, "secure.neighbours = 2"),
        ({"protection": {"clip": 1.0}}, "secure sums clip and add noise themselves"),
    ],
)
def test_what_cannot_be_summed_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_terms(**changes)


def test_late_updates_are_refused_with_codecs_that_need_no_key() -> None:
    with pytest.raises(ConfigError, match="masks cancel among the clients of one round"):
        make_terms(codec={"name": "fedsgd"}, keys="derived", arrivals=Arrivals(max_age=1))


def test_terms_with_sums_come_back_as_they_went() -> None:
    terms = make_terms()
    assert Terms.unpack(terms.pack()) == terms


# ------------------------------------------------------------------------------------------------ over a broker


def start_clients(broker: Broker | str, name: str, numbers: Sequence[int], **options: Any) -> threading.Thread:
    client = Client(broker, name, numbers, gradient=options.pop("gradient", gradient), initial=MODEL, **options)

    def run() -> None:
        with suppress(asyncio.CancelledError):
            client.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def make_server(broker: Mosquitto | Broker, name: str, folder: Path, **changes: Any) -> Server:
    values: dict[str, Any] = {"clients": CLIENTS, "rounds": 2, "lr": 0.1, "seed": 7, "keys": "shared", "secure": QUIET}
    codec = changes.pop("codec", MPDD(M, family="hadamard"))
    address = broker if isinstance(broker, Broker) else broker.address
    return Server(address, name, MODEL, codec, folder, **{**values, **changes})


def is_masked(data: bytes) -> bool:
    """Whether a message is a masked vector; clients also decline."""
    return data[:1] != b"\0" and kind_of(data) == Kind.MASKED


@pytest.fixture
def totals(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """What rounds came to."""
    counted: list[Counted] = []
    wait = SumGatherer.wait

    def spy(gatherer: SumGatherer) -> Counted:
        counted.append(wait(gatherer))
        return counted[-1]

    monkeypatch.setattr(SumGatherer, "wait", spy)
    return counted


def test_ten_clients_of_whom_two_vanish(
    mosquitto: Mosquitto, tmp_path: Path, totals: list[Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One while it computes, before it sent its masked vector, and one just after."""
    name, computes = "vanish", threading.Event()
    masked = threading.Event()
    hear = SumGatherer.receive

    def spy(gatherer: SumGatherer, client: int, data: bytes) -> None:
        if client == 9 and is_masked(data):
            masked.set()
        hear(gatherer, client, data)

    monkeypatch.setattr(SumGatherer, "receive", spy)
    ends: dict[int, Callable[[], Any]] = {}
    is_over = threading.Event()

    def vanishing(number: int) -> threading.Thread:
        def compute(flat: Float32, round_number: int, client: int) -> Float32:
            if client == 8:
                computes.set()
                is_over.wait()  # for longer than its connection lives
            return gradient(flat, round_number, client)

        client = Client(mosquitto.address, name, [number], gradient=compute, initial=MODEL)

        async def work() -> None:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None
            ends[number] = lambda: loop.call_soon_threadsafe(task.cancel)
            with suppress(asyncio.CancelledError):
                await client.take_part()

        thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
        thread.start()
        return thread

    threads = [start_clients(mosquitto.address, name, range(8)), vanishing(8), vanishing(9)]

    def end() -> None:
        assert computes.wait(20)
        assert masked.wait(20)
        ends[8]()
        ends[9]()
        is_over.set()

    ending = threading.Thread(target=end)
    ending.start()
    server = make_server(mosquitto, name, tmp_path / "run", arrivals=Arrivals(wait=2.0))
    models = []
    server.run(on_round=lambda number, flat, note: models.append(flat.copy()))
    ending.join()
    for thread in threads:
        thread.join(20)
    stayed = [[0, 1, 2, 3, 4, 5, 6, 7, 9], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert [[one.client for one in counted.contributions] for counted in totals] == stayed
    for number, (counted, flat) in enumerate(zip(totals, [MODEL, models[0]], strict=True)):
        assert counted.total is not None
        assert counted.total.tolist() == simulated_sum(server.terms, stayed[number], number, flat)


@pytest.mark.parametrize("codec", ["mpdd", "fedsgd"])
def test_a_server_of_ones_own_steps_along_the_sums_and_clients_follow(
    mosquitto: Mosquitto, tmp_path: Path, codec: str
) -> None:
    from fedmpdd.codecs import FedSGD

    name = f"own-{codec}"
    models: list[Float32] = []
    client = Client(mosquitto.address, name, range(CLIENTS), gradient=gradient, initial=MODEL)
    thread = threading.Thread(target=lambda: models.append(client.run()), daemon=True)
    thread.start()
    options: dict[str, Any] = {} if codec == "mpdd" else {"codec": FedSGD(), "keys": "derived"}
    flat = make_server(mosquitto, name, tmp_path / "run", rounds=4, **options).run()
    thread.join(20)
    assert [model.tobytes() for model in models] == [flat.tobytes()]
    if codec == "fedsgd":
        expected = MODEL
        for _ in range(4):
            expected = expected - np.float32(0.1) * (expected - TARGETS.mean(axis=0))
        assert np.allclose(flat, expected, atol=1e-5)


@pytest.mark.parametrize("bits", [None, 8])
def test_the_model_is_the_local_engines(mosquitto: Mosquitto, tmp_path: Path, bits: int | None) -> None:
    """To the bit: sums of integers are exact, whoever adds them."""
    from fedmpdd.mqtt.federation import FederationEncoder, MqttFederation

    values: dict[str, Any] = {"model": "logistic", "clients": 10, "batch": 4, "lr": 0.05, "rounds": 3, "device": "cpu"}
    values |= {"clients_per_round": 6, "downlink_bits": bits, "secure": {"clip": 0.1}}
    config = parse_config({**values, "codec": {"name": "mpdd", "m": 50, "family": "hadamard", "keys": "shared"}})
    local = federation_of(config, images())
    initial = local.flat.numpy().copy()
    local_bytes = [local.run_round().uplink_bytes for _ in range(3)]
    name = f"local-{bits}"
    clients = Client(
        mosquitto.address,
        name,
        range(10),
        prepare=lambda terms: (FederationEncoder(federation_of(config, images())), initial),
    )
    thread = threading.Thread(target=clients.run, daemon=True)
    thread.start()
    far = MqttFederation(config, images(), Broker.parse(mosquitto.address), name)
    rounds = [far.run_round() for _ in range(3)]
    far.end()
    far.close()
    thread.join(20)
    assert far.flat.numpy().tobytes() == local.flat.numpy().tobytes() != initial.tobytes()
    assert [one.clients for one in rounds] == [6, 6, 6]
    # But for shares beyond the threshold, which nobody waits for.
    spare = 6 - SecureRounds(clip=0.1).threshold(6)
    assert [one.uplink_bytes for one in rounds] == [count - spare * (16 + 33 * 6) for count in local_bytes]


LONGEST = 60.0  # seconds for anything that is waited for


def wait_for(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LONGEST
    while not done():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)


@pytest.mark.slow
def test_ten_processes_of_whom_two_are_killed_and_come_back(
    mosquitto: Mosquitto, tmp_path: Path, totals: list[Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is killed while it computes, one when it has sent its masked vector. In the next round they are back."""
    name, masked = "processes", threading.Event()
    receive = SumGatherer.receive

    def spy(gatherer: SumGatherer, client: int, data: bytes) -> None:
        if client == 9 and is_masked(data):
            masked.set()
        receive(gatherer, client, data)

    monkeypatch.setattr(SumGatherer, "receive", spy)

    def start(number: int) -> "subprocess.Popen[bytes]":
        arguments = [mosquitto.address, name, str(number), str(tmp_path)]
        return subprocess.Popen([sys.executable, "-m", "tests.mqtt.summand", *arguments])

    processes = {number: start(number) for number in range(CLIENTS)}
    for number in set(range(CLIENTS)) - {8}:
        (tmp_path / f"go-{number}").touch()

    def kill_two() -> None:
        wait_for((tmp_path / "computes-8").exists, "that client 8 computes")
        assert masked.wait(LONGEST)
        for number in (8, 9):
            processes[number].kill()
            processes[number].wait()
            processes[number] = start(number)
        (tmp_path / "go-8").touch()

    killing = threading.Thread(target=kill_two)
    killing.start()
    server = make_server(mosquitto, name, tmp_path / "run", arrivals=Arrivals(wait=20.0))
    models: list[Float32] = []
    try:
        server.run(on_round=lambda number, flat, note: models.append(flat.copy()))
    finally:
        killing.join()
        for process in processes.values():
            if len(models) < 2:
                process.kill()
            process.wait(LONGEST)
    stayed = [[0, 1, 2, 3, 4, 5, 6, 7, 9], list(range(CLIENTS))]
    assert [[one.client for one in counted.contributions] for counted in totals] == stayed
    for number, (counted, flat) in enumerate(zip(totals, [MODEL, models[0]], strict=True)):
        assert counted.total is not None
        assert counted.total.tolist() == simulated_sum(server.terms, stayed[number], number, flat)


def test_a_client_reads_no_message_for_another(tmp_path: Path, totals: list[Counted]) -> None:
    """By the lines of docs/secure-sum.md, and those of the training that a sum needs."""
    need_mosquitto()
    lines = [
        "user server",
        "topic readwrite fedmpdd/#",
        "pattern read fedmpdd/+/sum",
        "pattern read fedmpdd/+/to/%u",
        "pattern write fedmpdd/+/up/%u",
        *(f"pattern read fedmpdd/+/{one}" for one in ("terms", "round", "missing", "tail/+", "model/+")),
        "pattern write fedmpdd/+/here/%u",
    ]
    (tmp_path / "acl").write_text("\n".join(lines) + "\n")
    broker = Mosquitto(tmp_path, ["allow_anonymous true", f"acl_file {tmp_path / 'acl'}"])
    heard: list[str] = []
    listener = Connection(
        Broker("127.0.0.1", broker.port, username="5"),
        "listener",
        ["fedmpdd/acl/#", "fedmpdd/acl/to/+", "fedmpdd/acl/to/3"],
        lambda topic, payload: heard.append(topic),
    )
    try:
        clients = Broker("127.0.0.1", broker.port, username="{client}")
        thread = start_clients(clients, "acl", range(CLIENTS))
        leave: list[Callable[[], object]] = []
        listening = threading.Thread(target=lambda: asyncio.run(_listen(listener, leave)), daemon=True)
        listening.start()
        wait_for(lambda: listener.count == 1, "that the listener is connected")
        server = Broker("127.0.0.1", broker.port, username="server")
        make_server(server, "acl", tmp_path / "run").run()
        thread.join(20)
        leave[0]()
        listening.join(20)
    finally:
        broker.stop()
    assert [len(counted.contributions) for counted in totals] == [CLIENTS, CLIENTS]
    assert "fedmpdd/acl/to/5" in heard
    assert {topic for topic in heard if "/to/" in topic or "/up/" in topic} == {"fedmpdd/acl/to/5"}


async def _listen(listener: Connection, leave: list[Callable[[], object]]) -> None:
    """Stay connected until somebody calls what `leave` then has."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    leave.append(lambda: loop.call_soon_threadsafe(task.cancel))
    with suppress(asyncio.CancelledError):
        await listener.run()


def test_a_broker_that_is_killed_in_the_middle_of_a_sum_is_got_over(
    mosquitto_alone: Mosquitto, tmp_path: Path, totals: list[Counted]
) -> None:
    """What it had is gone, messages to clients too. The server asks again after a while."""
    name, killed = "killed", threading.Event()

    def compute(flat: Float32, round_number: int, client: int) -> Float32:
        if round_number == 1 and not killed.is_set():
            killed.set()
            mosquitto_alone.kill()
            mosquitto_alone.start()
        return gradient(flat, round_number, client)

    thread = start_clients(mosquitto_alone.address, name, range(CLIENTS), gradient=compute)
    server = make_server(mosquitto_alone, name, tmp_path / "run")
    server.run()
    thread.join(20)
    assert [len(counted.contributions) for counted in totals] == [CLIENTS, CLIENTS]


def test_a_server_that_is_killed_in_the_middle_of_a_sum_goes_on(
    mosquitto: Mosquitto, tmp_path: Path, totals: list[Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves at the broker and on the disk is all that the next one has; the model is the undisturbed one."""
    models = []
    take = SumGatherer._take

    def die(gatherer: SumGatherer, hall: Any, client: int, data: bytes) -> None:
        if gatherer._round == 1 and hall.server.phase == Phase.MASK and len(hall.answered) == 5:
            raise KilledError
        take(gatherer, hall, client, data)

    for name in ("calm", "again"):
        thread = start_clients(mosquitto.address, name, range(CLIENTS))
        if name == "again":
            with monkeypatch.context() as patch:
                patch.setattr(SumGatherer, "_take", die)
                with pytest.raises(KilledError):
                    make_server(mosquitto, name, tmp_path / name, rounds=3).run()
            next_second(monkeypatch)
        models.append(make_server(mosquitto, name, tmp_path / name, rounds=3).run())
        thread.join(20)
    assert models[0].tobytes() == models[1].tobytes()
