"""Updates a second through to the server's step, of many clients that are connected at once; and what gets lost."""

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.mqtt.mosquitto import DEFAULTS, SETTINGS, Mosquitto
from benchmarks.mqtt.swarm import Swarm, payloads_of, raise_limit, run_swarm
from fedmpdd.mqtt import Arrivals, Broker, Server, lean, post
from fedmpdd.mqtt.connection import Connection
from fedmpdd.uplink.codec_config import parse_codec

D = 13_426  # of LeNet
TEXT = "peaks:m=14"
NAME = "load"
WARM_UP = 2  # rounds that do not count
SPARE_FILES = 500
MOSQUITTO_IN_FLIGHT = 20  # where a subscriber does not say its receive maximum
STOP_AFTER_S, STOP_S = 0.02, 3.0  # how long after a round began a server stands still, and for how long


@dataclass(frozen=True)
class Row:
    """A load and how it was carried."""

    what: str
    reader: str  # of the server: "lean", or "aiomqtt"
    in_flight: int  # receive maximum of the server: messages before the first acknowledgement
    clients: int
    settings: dict[str, str]
    enough: int
    connect_s: float
    rounds: int
    seconds: float  # of the rounds that count
    updates: int  # that the server stepped with in them
    updates_per_s: float
    round_s: float  # median
    sent: int
    sent_again: int
    late: int  # updates that came too late to count
    duplicates: int
    broker_dropped: int  # as the server's log says
    asked_again: int  # lines of the log that ask clients again
    lost_connections: int
    server_us: float  # of processor time of the server an update, both threads
    stepping_us: float  # of it in the thread that decodes and steps; the other one reads
    server_rss: int
    load: float

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


def resident_bytes() -> int:
    """Return the memory that this process has now."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    return 0


class Lines(logging.Handler):
    """Keeps the lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _server_process(
    address: str,
    folder: str,
    options: dict[str, Any],
    reader: str,
    in_flight: int,
    stops: bool,
    profile: str | None,
    say: Any,
) -> None:
    """Be the server, and say how each round went."""
    lines = Lines()
    lean.MOST_IN_FLIGHT = in_flight
    if reader == "aiomqtt":  # the connection that clients have
        post.LeanConnection = Connection  # type: ignore[attr-defined, assignment]
    logging.getLogger("fedmpdd").addHandler(lines)
    logging.getLogger("fedmpdd").setLevel(logging.INFO)
    ends: list[tuple[float, int, float, float]] = []
    server = Server(
        Broker.parse(address),
        NAME,
        np.zeros(D, np.float32),
        parse_codec(TEXT).build(),
        folder,
        lr=1e-6,
        seed=7,
        **options,
    )

    def stop() -> None:
        say.put(None)
        time.sleep(0.05)  # the queue has a thread of its own, which must not stand still before it said so
        os.kill(os.getpid(), signal.SIGSTOP)

    def note(number: int, flat: Any, row: dict[str, Any]) -> None:
        ends.append((time.monotonic(), row["clients"], time.process_time(), time.thread_time()))
        if stops and number < options["rounds"] - 1:
            threading.Timer(STOP_AFTER_S, stop).start()

    if profile is not None:
        import cProfile

        profiler = cProfile.Profile()
        profiler.runcall(server.run, note)
        profiler.dump_stats(profile)
    else:
        server.run(note)
    gatherer = server._rounds._gatherer
    drops = {"late": sum(gatherer.drops.values()), "duplicates": gatherer.duplicates}
    say.put((ends, drops, lines.lines, resident_bytes()))


def _swarm_process(port: int, clients: int, options: dict[str, Any], say: Any) -> None:
    payloads = payloads_of(parse_codec(TEXT).build(), D)
    run_swarm(partial(Swarm, NAME, port, clients, payloads, **options), say.put)


def measure(
    what: str,
    clients: int,
    rounds: int,
    *,
    enough: int | None = None,
    ahead: int | None = None,
    listens: bool = False,
    settings: Mapping[str, str] = SETTINGS,
    keys: str = "derived",
    mean_bits: int | None = None,
    reader: str = "lean",
    in_flight: int = lean.MOST_IN_FLIGHT,
    stops: bool = False,
    profile: str | None = None,
) -> Row:
    """Let many clients send, and count what the server steps with."""
    raise_limit(clients + SPARE_FILES)
    spawn = multiprocessing.get_context("spawn")
    heard, served = spawn.Queue(), spawn.Queue()
    arrivals = Arrivals(enough=enough, max_age=0 if enough is None else 8)
    options: dict[str, Any] = {"clients": clients, "rounds": rounds + WARM_UP, "arrivals": arrivals, "keys": keys}
    options["mean_bits"] = mean_bits
    swarming = {"listens": listens, "ahead": ahead, "enough": enough or 0}
    with tempfile.TemporaryDirectory() as folder, Mosquitto(Path(folder) / "broker", settings) as mosquitto:
        swarm = spawn.Process(target=_swarm_process, args=(mosquitto.port, clients, swarming, heard), daemon=True)
        swarm.start()
        _, connect_s = heard.get(timeout=300)
        server = spawn.Process(
            target=_server_process, daemon=True,
            args=(str(mosquitto.broker), str(Path(folder) / "run"), options, reader, in_flight, stops, profile, served),
        )  # fmt: skip
        server.start()
        while (said := served.get(timeout=600)) is None:  # it stands still in the middle of a round
            time.sleep(STOP_S)
            assert server.pid is not None
            os.kill(server.pid, signal.SIGCONT)
        ends, drops, lines, rss = said
        _, counts = heard.get(timeout=60)
        server.join()
        swarm.join()
    times = [end for end, *_ in ends[WARM_UP - 1 :]]
    updates = sum(count for _, count, *_ in ends[WARM_UP:])
    seconds = times[-1] - times[0]
    dropped = sum(int(line.split(" threw away ")[1].split()[0]) for line in lines if " threw away " in line)
    return Row(
        what=what,
        reader=reader,
        in_flight=in_flight,
        clients=clients,
        settings=dict(settings),
        enough=enough or clients,
        connect_s=connect_s,
        rounds=rounds,
        seconds=seconds,
        updates=updates,
        updates_per_s=updates / seconds,
        round_s=median(np.diff(times)),
        sent=counts["sent"],
        sent_again=counts["sent_again"],
        late=drops["late"],
        duplicates=drops["duplicates"],
        broker_dropped=dropped,
        asked_again=sum("asking" in line and "again" in line for line in lines),
        lost_connections=counts["lost_connections"],
        server_us=1e6 * (ends[-1][2] - ends[WARM_UP - 1][2]) / updates,
        stepping_us=1e6 * (ends[-1][3] - ends[WARM_UP - 1][3]) / updates,
        server_rss=rss,
        load=os.getloadavg()[0],
    )


def through_to_the_step(clients: int, seconds: float, reader: str = "lean") -> Row:
    """Updates a second of a server that steps after every 2,000, for about so many seconds."""
    enough = min(2000, clients)
    rounds = max(5, round(seconds * (12_000 if reader == "lean" else 4000) / enough))
    return measure("asynchronous", clients, rounds, enough=enough, ahead=2 * enough, reader=reader)


def loss(clients: int, rounds: int = 3) -> list[Row]:
    """All clients at once at a server that stands still in every round: who loses updates, and who notices."""
    defaults, ours = "mosquitto's defaults", "settings of docs/mqtt.md"
    return [
        measure(f"all at once, {words}", clients, rounds, settings=settings, in_flight=in_flight, stops=True)
        for words, settings, in_flight in (
            (defaults, DEFAULTS, MOSQUITTO_IN_FLIGHT),
            (defaults, DEFAULTS, lean.MOST_IN_FLIGHT),
            (ours, SETTINGS, lean.MOST_IN_FLIGHT),
        )
    ]


def memory(clients: int, rounds: int) -> list[dict[str, Any]]:
    """How much memory the server has with 100 clients and with many, a few updates a round and one of everybody."""
    few = 100
    alone = measure("few clients", few, rounds, enough=few, ahead=0)
    rows = [{"what": "100 clients, 100 updates a round", "clients": few, "server_rss": alone.server_rss}]
    for words, enough, ahead in (("100 updates a round", few, 0), ("an update of everybody a round", None, None)):
        row = measure("many clients", clients, rounds, enough=enough, ahead=ahead)
        extra = (row.server_rss - alone.server_rss) / (clients - few)
        rows.append({"what": f"{clients:,} clients, {words}", "clients": clients, "server_rss": row.server_rss})
        rows[-1] |= {"rounds": rounds, "bytes_a_client": extra, "goal": 1000}
    return rows
