"""Trainings over a real broker come to the very model that the same rounds come to without one."""

import asyncio
import logging
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmpdd.codecs import Codec
from fedmpdd.codecs.registry import make_codec
from fedmpdd.errors import ConfigError, OrderError, RunError
from fedmpdd.mqtt import Arrivals, Broker, Client, Server
from fedmpdd.mqtt import client as client_module
from fedmpdd.mqtt.client import GradientEncoder
from fedmpdd.mqtt.connection import Connection
from fedmpdd.mqtt.gatherer import Gatherer
from fedmpdd.mqtt.messages import RoundMessage, read_contributions
from fedmpdd.server.journal import JOURNAL, JournalReader
from fedmpdd.server.step import StepRule
from tests.mqtt.beside import PATIENCE_S, beside
from tests.mqtt.mosquitto import Mosquitto
from tests.mqtt.trainings import MODEL, PEAKS, SIGNS, TARGETS, Float32, ServerOnPaper, gradient, make_terms


def codec_of(values: dict[str, Any]) -> Codec:
    return make_codec(values["name"], {key: value for key, value in values.items() if key != "name"})


def make_server(broker: str | Broker, name: str, folder: Path, rounds: int = 3, **changes: Any) -> Server:
    values: dict[str, Any] = {"codec": codec_of(PEAKS), "clients": 6, "per_round": 4, "lr": 0.1, "seed": 3}
    values |= {"shapes": ((6, 40), (10,)), "rounds": rounds, **changes}
    return Server(broker, name, MODEL, folder=folder, **values)


def on_paper(server: Server) -> Float32:
    """The model that synchronous rounds of this server's terms lead to, without a network."""
    return ServerOnPaper(server.terms).run(server.terms.rounds).replica.flat  # type: ignore[no-any-return]


SETTINGS: dict[str, dict[str, Any]] = {
    "derived": {},
    "partitioned": {"keys": "partitioned", "codec": codec_of(SIGNS), "server": StepRule("adam")},
    "mean": {"keys": "shared", "codec": codec_of({**SIGNS, "bits": 32}), "mean_bits": 8},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_training_of_ones_own_comes_to_the_model_of_the_same_loop(
    mosquitto: Mosquitto, tmp_path: Path, name: str
) -> None:
    server = make_server(mosquitto.address, name, tmp_path, **SETTINGS[name])
    clients = [
        Client(mosquitto.address, name, numbers, gradient, initial=initial)
        for numbers, initial in (([0, 2, 4], MODEL), ([1, 5], None), ([3], MODEL))
    ]
    models = [beside(client.run) for client in clients]
    notes: list[dict[str, Any]] = []
    flat = server.run(lambda number, flat, note: notes.append({"round": number, **note}))
    assert flat.tobytes() == on_paper(server).tobytes()
    for model in models:
        assert model.result(PATIENCE_S).tobytes() == flat.tobytes()
    size = server.terms.session.frame_bytes()
    assert notes == [{"round": number, "clients": 4, "uplink_bytes": 4 * (2 + size)} for number in range(3)]
    with JournalReader(tmp_path / JOURNAL) as journal:
        assert [record.round for record in journal] == [0, 1, 2]


def test_the_same_training_can_be_held_again(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """The broker says of the one before that it is over until the server of the next takes that back."""
    models = []
    for attempt in ("first", "second"):
        flat = beside(make_server(mosquitto.address, "again", tmp_path / attempt).run)
        while not flat.done():  # who comes before the server leaves with the training before, and comes again
            Client(mosquitto.address, "again", range(6), gradient).run()
        models.append(flat.result(PATIENCE_S).tobytes())
    assert models[0] == models[1]
    with JournalReader(tmp_path / "second" / JOURNAL) as journal:
        assert [record.note["clients"] for record in journal] == [4, 4, 4]


def test_a_folder_that_is_done_is_read_and_tells_clients_so(mosquitto: Mosquitto, tmp_path: Path) -> None:
    client = Client(mosquitto.address, "done", range(6), gradient)
    waiting = beside(client.run)
    flat = make_server(mosquitto.address, "done", tmp_path).run()
    assert waiting.result(PATIENCE_S).tobytes() == flat.tobytes()
    again = make_server(mosquitto.address, "done", tmp_path)
    assert again.run().tobytes() == flat.tobytes()
    late = Client(mosquitto.address, "done", [2], gradient)
    assert beside(late.run).result(PATIENCE_S).tobytes() == flat.tobytes()


# ------------------------------------------------------------------------------------- late clients, lost messages


@pytest.mark.parametrize(
    ("rounds", "initial", "lacks"),
    [(10, MODEL, "what the rounds since its model added"), (10, None, "a model"), (70, MODEL, "a model")],
    ids=["tail", "no model", "far behind"],
)
def test_a_late_client_catches_up(
    mosquitto: Mosquitto,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    rounds: int,
    initial: Float32 | None,
    lacks: str,
) -> None:
    """It comes when so many rounds were held without it, and the last of the training needs its updates."""
    name = f"late-{rounds}-{initial is None}"
    server = make_server(mosquitto.address, name, tmp_path, rounds=rounds + 3, clients=3, per_round=2)
    needed = next(number for number in range(3) if number in server.terms.sample(rounds).tolist())
    late = Client(mosquitto.address, name, [needed], gradient, initial=initial)

    def stands_in(flat: Float32, round_number: int, client: int) -> Float32:
        """Computes for everybody until the late one is to come, and ends then."""
        if round_number == rounds and client == needed:
            raise KeyError("away")
        return gradient(flat, round_number, client)

    others = beside(Client(mosquitto.address, name, [one for one in range(3) if one != needed], stands_in).run)
    substitute = beside(Client(mosquitto.address, name, [needed], stands_in).run)
    flat = beside(server.run)
    with pytest.raises(KeyError, match="away"):
        substitute.result(PATIENCE_S)
    with caplog.at_level(logging.INFO, "fedmpdd"):
        result = beside(late.run)
        result.result(PATIENCE_S)
    assert flat.result(PATIENCE_S).tobytes() == on_paper(server).tobytes()
    assert result.result(PATIENCE_S).tobytes() == on_paper(server).tobytes()
    assert others.result(PATIENCE_S).tobytes() == on_paper(server).tobytes()
    assert f"the model here lacks {lacks}; asking the broker" in caplog.text


def test_an_update_that_the_broker_lost_is_asked_for_again(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client believes that it sent it; the server asks whose update is missing."""
    from fedmpdd.mqtt import gatherer

    monkeypatch.setattr(gatherer, "ASK_AGAIN", 0.1)
    receive = gatherer.Gatherer.receive
    lost: list[bytes] = []

    def lossy(self: Gatherer, client: int, data: bytes) -> None:
        if client == 2 and len(lost) < 2:
            lost.append(data)
        else:
            receive(self, client, data)

    monkeypatch.setattr(gatherer.Gatherer, "receive", lossy)
    server = make_server(mosquitto.address, "lossy", tmp_path)
    client = Client(mosquitto.address, "lossy", range(6), gradient)
    result = beside(client.run)
    assert server.run().tobytes() == on_paper(server).tobytes()
    assert result.result(PATIENCE_S).tobytes() == on_paper(server).tobytes()
    assert len(lost) == 2
    assert client.sent_again >= 2


@pytest.mark.slow
def test_a_broker_that_dies_with_its_memory_in_mid_round(mosquitto_alone: Mosquitto, tmp_path: Path) -> None:
    """Its retained messages and its subscribers are gone; server and clients make good for both."""
    name, broken = "broken", set[int]()
    server = make_server(mosquitto_alone.address, name, tmp_path, rounds=6, per_round=6)

    def breaking(flat: Float32, round_number: int, client: int) -> Float32:
        if client == 5 and round_number in (1, 3, 5) and round_number not in broken:
            broken.add(round_number)
            mosquitto_alone.kill()
            mosquitto_alone.start()
        return gradient(flat, round_number, client)

    clients = [
        beside(Client(mosquitto_alone.address, name, numbers, breaking).run) for numbers in ([0, 1], [2, 3, 4], [5])
    ]
    flat = server.run()
    assert flat.tobytes() == on_paper(server).tobytes()
    assert [client.result(PATIENCE_S).tobytes() for client in clients] == [flat.tobytes()] * 3
    assert broken == {1, 3, 5}


def test_a_broker_that_is_away_when_the_training_ends_still_says_so(mosquitto_alone: Mosquitto, tmp_path: Path) -> None:
    server = make_server(mosquitto_alone.address, "end", tmp_path)

    def break_at_the_end(number: int, flat: Float32, note: dict[str, Any]) -> None:
        if number == 2:
            mosquitto_alone.kill()
            threading.Timer(0.5, mosquitto_alone.start).start()

    client = beside(Client(mosquitto_alone.address, "end", range(6), gradient).run)
    flat = server.run(break_at_the_end)
    assert client.result(PATIENCE_S).tobytes() == flat.tobytes() == on_paper(server).tobytes()


# ------------------------------------------------------------------------------------------ asynchronous rounds


def test_late_updates_count_and_the_training_comes_near_its_end(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """One client answers when two rounds have begun since: the others do not wait, and its updates still count.

    The model goes to the mean of the clients' points, and from afar: 30 steps of 0.2 leave a 300th of the way.
    """
    rounds, slow = 40, 4
    server = make_server(
        mosquitto.address,
        "slow",
        tmp_path,
        rounds=rounds,
        clients=5,
        per_round=5,
        lr=0.2,
        codec=codec_of({"name": "fedsgd"}),
        arrivals=Arrivals(enough=4, max_age=4, decay=0.5),
    )
    reached = {number: threading.Event() for number in range(rounds + 10)}

    def note_round(message: RoundMessage) -> None:
        reached[message.round].set()

    def slowly(flat: Float32, round_number: int, client: int) -> Float32:
        assert reached[min(round_number + 2, rounds)].wait(PATIENCE_S)
        return gradient(flat, round_number, client)

    clients = [
        beside(Client(mosquitto.address, "slow", range(4), gradient, on_round=note_round).run),
        beside(Client(mosquitto.address, "slow", [slow], slowly).run),
    ]
    flat = server.run()
    assert [client.result(PATIENCE_S).tobytes() for client in clients] == [flat.tobytes()] * 2
    ages = []
    with JournalReader(tmp_path / JOURNAL) as journal:
        for record in journal:
            contributions = read_contributions(record.note["arrived"], server.terms, record.round)
            ages += [one.age for one in contributions if one.client == slow]
            keys = [(record.round - one.age, one.client) for one in contributions]
            assert len(contributions) >= 4
            assert keys == list(dict.fromkeys(keys))
    assert len(ages) >= 5
    assert min(ages) >= 2
    mean = TARGETS[:5].mean(axis=0)
    assert np.linalg.norm(flat - mean) < 0.5 * np.linalg.norm(MODEL - mean)


# ------------------------------------------------------------------------------------------------ what goes wrong


def publish(broker: Mosquitto, messages: list[tuple[str, bytes]], **options: Any) -> None:
    """Publish as somebody who is no part of a training."""
    import aiomqtt

    async def send() -> None:
        async with aiomqtt.Client("127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5, **options) as client:
            for topic, payload in messages:
                await client.publish(topic, payload, qos=1, retain=True)

    asyncio.run(send())


def retained(broker: Mosquitto, topic: str) -> bytes:
    """What the broker keeps at a topic."""
    import aiomqtt

    async def read() -> bytes:
        async with aiomqtt.Client("127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5) as client:
            await client.subscribe(topic, qos=1)
            async with asyncio.timeout(PATIENCE_S):
                async for message in client.messages:
                    return bytes(message.payload)
        raise AssertionError

    return asyncio.run(read())


def test_nonsense_in_every_topic_changes_nothing(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """While the training goes on; terms apart, which the server alone may write."""
    name = "nonsense"
    server = make_server(mosquitto.address, name, tmp_path, rounds=6)
    topics = [f"fedmpdd/{name}/{topic}" for topic in ("round", "missing", "tail/1", "tail/x", "model/0", "model/9")]
    topics += [
        f"fedmpdd/{name}/{kind}/{who}" for kind in ("up", "here") for who in ("0", "3", "7", "x", "-1", "9" * 12)
    ]
    topics += [f"fedmpdd/{name}/up/0/1", f"fedmpdd/{name}/else"]
    nonsense = [(topic, data) for topic in topics for data in (b"x", bytes(40), b"\xff" * 200, b"{}")]

    def disturb(number: int, flat: Float32, note: dict[str, Any]) -> None:
        publish(mosquitto, nonsense)

    clients = [
        beside(Client(mosquitto.address, name, [0, 1, 2], gradient, initial=MODEL).run),
        beside(Client(mosquitto.address, name, [3, 4, 5], gradient).run),
    ]
    flat = server.run(disturb)
    assert flat.tobytes() == on_paper(server).tobytes()
    assert [client.result(PATIENCE_S).tobytes() for client in clients] == [flat.tobytes()] * 2


def test_another_training_of_the_name_is_replaced_only_on_demand(mosquitto: Mosquitto, tmp_path: Path) -> None:
    name = "kept"
    first = make_server(mosquitto.address, name, tmp_path / "first")
    client = beside(Client(mosquitto.address, name, range(6), gradient).run)
    first.run()
    client.result(PATIENCE_S)
    before = [retained(mosquitto, f"fedmpdd/{name}/{topic}") for topic in ("terms", "round", "model/0")]
    other = make_server(mosquitto.address, name, tmp_path / "second", lr=0.2)
    with pytest.raises(RunError, match=r"another training named 'kept'; choose another --name, or --replace it"):
        other.run()
    assert [retained(mosquitto, f"fedmpdd/{name}/{topic}") for topic in ("terms", "round", "model/0")] == before
    replacing = make_server(mosquitto.address, name, tmp_path / "second", lr=0.2, replaces=True)
    result = beside(replacing.run)
    while retained(mosquitto, f"fedmpdd/{name}/terms") == before[0]:
        pass
    client = beside(Client(mosquitto.address, name, range(6), gradient).run)
    assert result.result(PATIENCE_S).tobytes() == on_paper(replacing).tobytes()
    assert client.result(PATIENCE_S).tobytes() == on_paper(replacing).tobytes()


def test_a_client_of_a_training_that_was_replaced_ends_its_part(mosquitto: Mosquitto, tmp_path: Path) -> None:
    name = "replaced"
    begun = threading.Event()
    client = Client(mosquitto.address, name, [0], gradient, on_round=lambda message: begun.set())
    waiting = beside(client.run)
    server = make_server(mosquitto.address, name, tmp_path)  # whose other clients never come
    publish(mosquitto, [(f"fedmpdd/{name}/terms", server.terms.pack())])
    rounds = ServerOnPaper(server.terms)
    from fedmpdd.mqtt.follower import snapshot
    from fedmpdd.mqtt.messages import pack_parts

    part = pack_parts(0, snapshot(rounds.replica), server.terms)[0]
    publish(mosquitto, [(f"fedmpdd/{name}/model/0", part), (f"fedmpdd/{name}/round", rounds.packed(0))])
    assert begun.wait(PATIENCE_S)
    publish(mosquitto, [(f"fedmpdd/{name}/terms", make_terms(lr=0.5, seed=9).pack())])
    with pytest.raises(OrderError, match=r"other terms now \(codec, seed, rounds, lr.*start the client anew"):
        waiting.result(PATIENCE_S)


def test_terms_that_no_client_can_keep_are_said_and_the_client_ends(mosquitto: Mosquitto) -> None:
    wrong = {
        "version": (b'{"fedmpdd": 2}', "have version 2, this client's 1: install one release"),
        "foreign": (b'{"temperature": 21}', "none of fedmpdd; name another training, or clear it"),
        "torn": (b'{"fedmpdd": 1', "cannot be read"),
    }
    for name, (data, words) in wrong.items():
        publish(mosquitto, [(f"fedmpdd/{name}/terms", data)])
        with pytest.raises(OrderError, match=words):
            Client(mosquitto.address, name, [0], gradient).run()


def test_a_client_that_is_none_of_the_trainings(mosquitto: Mosquitto) -> None:
    publish(mosquitto, [("fedmpdd/few/terms", make_terms().pack())])
    with pytest.raises(OrderError, match="client 6 is none of the 6 of training 'few'"):
        Client(mosquitto.address, "few", [5, 6], gradient).run()


def test_another_initial_model_is_refused(mosquitto: Mosquitto) -> None:
    publish(mosquitto, [("fedmpdd/model/terms", make_terms().pack())])
    with pytest.raises(OrderError, match="let the client ask for the model"):
        Client(mosquitto.address, "model", [0], gradient, initial=2 * MODEL).run()


@pytest.mark.parametrize(
    "numbers", [[], [1, 1], [-1], [2**32], 5, None, ["a"], [1.5], [True], "012", np.arange(3) / 2], ids=str
)
def test_numbers_that_no_client_has(numbers: Any) -> None:
    with pytest.raises(ConfigError, match="expected different numbers of clients, from 0"):
        Client("mqtt://localhost", "t", numbers, gradient)


def test_numbers_may_be_an_array() -> None:
    assert Client("mqtt://localhost", "t", np.arange(3), gradient)._numbers == [0, 1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gradient": 5}, "gradient = 5: expected a function"),
        ({"on_round": "x"}, "on_round = 'x': expected a function"),
        ({"policy": 5}, "policy = 5: expected a ClientPolicy"),
        ({"initial": 5}, r"initial is int 5: expected a vector of float32 \[d\]"),
        ({"initial": MODEL[np.newaxis]}, r"initial is float32 \(1, 250\)"),
        ({"broker": 5}, "broker '5': expected mqtt://host:port"),
        ({"broker": None}, "broker 'None': expected mqtt://host:port"),
    ],
    ids=str,
)
def test_arguments_that_are_none_of_a_client(changes: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {"broker": "mqtt://localhost", "gradient": gradient, **changes}
    with pytest.raises(ConfigError, match=words):
        Client(values.pop("broker"), "t", [0], **values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codec": "peaks"}, "codec = 'peaks': expected a codec"),
        ({"codec": None}, "codec = None: expected a codec"),
        ({"folder": 5}, "folder = 5: expected a path"),
        ({"clients": "6"}, "clients = '6', expected a whole number"),
        ({"clients": 6.5, "per_round": None}, "clients = 6.5, expected a whole number"),
        ({"per_round": 1.5}, "per_round = 1.5, expected a whole number"),
        ({"rounds": -1}, "rounds = -1, expected a whole number"),
        ({"rounds": 1.5}, "rounds = 1.5, expected a whole number"),
        ({"lr": "x"}, "lr = 'x': expected a finite number"),
        ({"server": "sgd"}, "server = 'sgd', expected a value of type StepRule"),
        ({"arrivals": {"enough": 2}}, "arrivals = .*, expected a value of type Arrivals"),
        ({"error_feedback": "yes"}, "error_feedback = 'yes', expected a value of type bool"),
        ({"protection": 5}, "protection = 5: expected a table"),
        ({"robust": "median"}, "robust = 'median': expected a RobustMean"),
        ({"secure": {"clip": 1.0}}, "secure = .*: expected SecureRounds"),
        ({"shapes": [250]}, r"shapes = \[250\]: expected those of the model's parameters"),
        ({"broker": b"mqtt://localhost"}, "expected mqtt://host:port"),
    ],
    ids=str,
)
def test_arguments_that_are_none_of_a_server(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {"broker": "mqtt://localhost", "folder": tmp_path, **changes}
    with pytest.raises(ConfigError, match=words):
        make_server(values.pop("broker"), "t", values.pop("folder"), **values)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            lambda model: model[:240],
            r"gradient\(model, 0, 1\) returned float32 \(240,\), expected an array of 250 real",
        ),
        (lambda model: model[np.newaxis], r"returned float32 \(1, 250\)"),
        (lambda model: None, "returned NoneType None"),
        (lambda model: "x", "returned str 'x'"),
        (lambda model: model + 1j, "returned complex64"),
        (lambda model: [[1.0], [1.0, 2.0]], "returned list"),
    ],
    ids=["shorter", "matrix", "None", "text", "complex", "ragged"],
)
def test_a_gradient_that_is_none_ends_the_client(wrong: Any, words: str) -> None:
    """A shorter one would be encoded along directions of another length, and train the model to nonsense."""
    encoder = GradientEncoder(make_terms(), lambda flat, round_number, client: wrong(flat))
    with pytest.raises(ConfigError, match=words):
        encoder.updates(0, MODEL, [1])


def test_a_gradient_of_another_length_ends_the_client_that_computes_it(mosquitto: Mosquitto, tmp_path: Path) -> None:
    server = make_server(mosquitto.address, "short", tmp_path, rounds=1, per_round=6)
    result = beside(server.run)
    with pytest.raises(ConfigError, match="expected an array of 250 real numbers"):
        Client(mosquitto.address, "short", [0], lambda flat, round_number, client: flat[:240]).run()
    Client(mosquitto.address, "short", range(6), gradient).run()
    assert result.result(PATIENCE_S).tobytes() == on_paper(server).tobytes()


def test_a_gradient_function_may_write_to_its_model() -> None:
    def writing(flat: Float32, round_number: int, client: int) -> Float32:
        flat -= TARGETS[client]
        return flat

    terms, flat = make_terms(), MODEL.copy()
    updates = GradientEncoder(terms, writing).updates(0, flat, [0, 1, 2])
    assert flat.tobytes() == MODEL.tobytes()
    assert updates == GradientEncoder(terms, gradient).updates(0, MODEL, [0, 1, 2])


def test_a_client_that_no_server_comes_to_says_what_it_waits_for(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "LONG_S", 0.01)
    said = threading.Event()
    warn = logging.Logger.warning

    def warning(self: logging.Logger, text: object, *values: object) -> None:
        warn(self, text, *values)
        said.set()

    monkeypatch.setattr(logging.Logger, "warning", warning)
    result = beside(Client(mosquitto.address, "nobody", range(6), gradient).run)
    assert said.wait(PATIENCE_S)
    assert "has no training named 'nobody'; waiting for its server" in caplog.text
    flat = make_server(mosquitto.address, "nobody", tmp_path, rounds=1).run()
    assert result.result(PATIENCE_S).tobytes() == flat.tobytes()


def test_a_fault_in_the_servers_connection_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Broker, *values: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Broker, "lean_connection", broken)
    with pytest.raises(RunError, match=r"the server's connection has failed: ZeroDivisionError\('oops'\)"):
        make_server("mqtt://localhost", "fault", tmp_path).run()


def test_two_of_one_name_at_a_broker_are_said_to_be_two(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the broker does not say so itself: they throw each other out."""
    monkeypatch.setattr("fedmpdd.mqtt.connection.LONGEST_PAUSE", 0.1)
    words = "if another process is this client, or this server, too, stop one of them"

    async def both() -> None:
        broker = Broker.parse(mosquitto.address)
        twins = [Connection(broker, "fedmpdd-twin-0", ["twin"], lambda topic, payload: None) for _ in range(2)]
        tasks = []
        async with asyncio.timeout(PATIENCE_S):
            for one in twins:  # each is connected once, so that a loss of its connection is no reason to end
                tasks.append(asyncio.create_task(one.run()))
                while one.count == 0:
                    await asyncio.sleep(0.02)
            while words not in caplog.text and not any(task.done() for task in tasks):
                await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(both())
    assert words in caplog.text


def test_no_broker_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("aiomqtt", reason="the extra `mqtt` is not installed")
    from tests.mqtt.mosquitto import free_port

    address = f"mqtt://127.0.0.1:{free_port()}"
    for run in (make_server(address, "t", tmp_path).run, Client(address, "t", [0], gradient).run):
        with pytest.raises(RunError, match=rf"^{address} cannot be used: .*; is a broker running there\?.*--broker$"):
            run()


def test_a_client_without_anything_to_compute_is_refused() -> None:
    with pytest.raises(ConfigError, match="and one of them"):
        Client("mqtt://localhost", "t", [0])


# ------------------------------------------------------------------------------------------- folders of a server


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.2}, "lr differ"),
        ({"clients": 7}, "clients differ"),
        ({"codec": codec_of(SIGNS)}, "codec differ"),
        ({"arrivals": Arrivals(enough=2)}, "arrivals differ"),
    ],
)
def test_a_folder_of_another_training_is_not_gone_on_with(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    make_server("mqtt://localhost", "t", tmp_path)._open()[0].close()
    with pytest.raises(RunError, match=words):
        make_server("mqtt://localhost", "t", tmp_path, **changes)
    assert make_server("mqtt://localhost", "t", tmp_path, seed=None).terms.seed == 3


def test_a_journal_without_terms_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b"something")
    with pytest.raises(RunError, match=r"holds a journal and no terms\.json"):
        make_server("mqtt://localhost", "t", tmp_path)


def test_a_server_goes_on_from_any_prefix_of_its_journal(tmp_path: Path) -> None:
    """Without a broker: the model, and what clients are told of the rounds before."""
    server = make_server("mqtt://localhost", "t", tmp_path)
    paper = ServerOnPaper(server.terms)
    from fedmpdd.mqtt.follower import model_sha256
    from fedmpdd.mqtt.messages import pack_contributions
    from fedmpdd.server.journal import Record

    journal, _, past = server._open()
    assert past == []
    journal.close()
    for number in range(3):
        message = paper.run(1).messages[-1]
        arrived = pack_contributions(message.contributions, server.terms, number)
        journal, replica, past = make_server("mqtt://localhost", "t", tmp_path)._open()
        assert past == paper.messages[:number]
        assert replica.flat.tobytes() == paper.models[number].tobytes()
        assert message.bundle is not None
        journal.append(Record(number, message.bundle, model_sha256(paper.models[-1]), {"arrived": arrived}))
        journal.close()


@pytest.mark.parametrize(
    "model",
    [MODEL.astype(np.float64), MODEL[np.newaxis], MODEL * np.nan, [0.0, 1.0]],
    ids=["float64", "matrix", "NaN", "a list"],
)
def test_a_model_that_is_no_vector_of_finite_float32(tmp_path: Path, model: Any) -> None:
    with pytest.raises(ConfigError, match="expected a vector of finite float32"):
        Server("mqtt://localhost", "t", model, codec_of(PEAKS), tmp_path, clients=2, rounds=1, lr=0.1)


def test_shapes_must_hold_the_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shapes hold 240 parameters, and the model has 250"):
        make_server("mqtt://localhost", "t", tmp_path, shapes=((6, 40),))


def test_the_training_of_the_page_runs_as_it_stands(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """And comes near the mean of the clients' points: over forty seeds at most 0.04 of the way was left."""
    page = (Path(__file__).parents[2] / "docs" / "mqtt.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"broker": mosquitto.address, "folder": tmp_path}
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(block, names)
    mean = names["points"].mean(axis=0)
    assert not names["thread"].is_alive()
    assert np.linalg.norm(names["trained"] - mean) < 0.1 * np.linalg.norm(mean)
