"""Kill the server, or the broker, of a training over MQTT many times in mid-round, and compare the bits that come out.

    python tools/mqtt_kills.py --kills 50 --out docs/results/mqtt/kills.json

The training is softmax regression on the bundled digits with synchronous rounds. Its clients and whoever is not killed
run on. The broker keeps nothing on its disk. What must hold: the model's SHA-256 is that of the local engine, and so is
the hash of every model that a message of a round ever announced, so that nothing acknowledged was lost.
"""

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.mqtt.mosquitto import Mosquitto  # noqa: E402
from fedmpdd.mqtt import Broker, Client  # noqa: E402
from fedmpdd.mqtt.federation import over_mqtt, prepare_with  # noqa: E402
from fedmpdd.mqtt.messages import RoundMessage  # noqa: E402
from fedmpdd.runs.folders import Run  # noqa: E402
from fedmpdd.server.journal import JOURNAL, JournalReader  # noqa: E402
from fedmpdd.simulation.config import load_config  # noqa: E402

NAME = "kills"
ROUNDS_PER_KILL = 12
CLIENTS = 4
PATIENCE_S = 120.0
WAIT_FOR = 2  # rounds that must go well between two kills


def words(rounds: int) -> list[str]:
    """Return the settings of the training."""
    return [
        f"rounds={rounds}",
        f"clients={CLIENTS}",
        "participation=1.0",
        "codec.name=peaks",
        "codec.m=14",
        "gradients=loop",
        "lr=0.05",
        f"evaluate_every={rounds}",
    ]


def be_clients(address: str, rounds: int, results: Any) -> None:
    """Be all clients, and send back the models that were announced and how many updates were sent again."""
    import torch

    torch.set_num_threads(1)
    tags: dict[int, set[str]] = {}

    def note(message: RoundMessage) -> None:
        tags.setdefault(message.round, set()).add(message.model_tag.hex())

    config = over_mqtt(load_config("demo", words(rounds)))
    numbers = list(range(CLIENTS))
    client = Client(Broker.parse(address), NAME, numbers, prepare=prepare_with(config), on_round=note)
    results.put("ready")
    client.run()
    results.put((tags, client.sent_again, client.given_up))


def start_server(broker: Broker, folder: Path, rounds: int, log: Path) -> "subprocess.Popen[bytes]":
    """Start the server, or go on with its run folder."""
    what = ["--resume", str(folder)] if folder.exists() else ["demo", *words(rounds), "--out", str(folder)]
    command = [sys.executable, "-m", "fedmpdd", "mqtt", "serve", *what, "--broker", str(broker), "--name", NAME]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT)


class Watch:
    """Looks at a journal as it grows."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def size(self) -> int:
        """Return its bytes."""
        return self._journal.stat().st_size if self._journal.exists() else 0

    def wait_for_growth(self, process: "subprocess.Popen[bytes]") -> bool:
        """Wait until some rounds went well; False where the training ended before."""
        sizes = {self.size()}
        end = time.monotonic() + PATIENCE_S
        while len(sizes) <= WAIT_FOR:
            if process.poll() is not None:
                return False
            if time.monotonic() > end:
                raise SystemExit(f"no round went well for {PATIENCE_S:.0f} s")
            time.sleep(0.002)
            sizes.add(self.size())
        return True


def train(kills: int, what: str, expected: list[str], rounds: int) -> dict[str, Any]:
    """Train, kill the server or the broker so many times, and return how it ended."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    moments = random.Random(17)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name) / "broker") as mosquitto:
        folder, log = Path(name) / "run", Path(name) / "server.log"
        clients = spawn.Process(target=be_clients, args=(str(mosquitto.broker), rounds, results), daemon=True)
        clients.start()
        results.get(timeout=PATIENCE_S)
        server = start_server(mosquitto.broker, folder, rounds, log)
        watch, killed = Watch(folder / JOURNAL), 0
        try:
            while killed < kills and watch.wait_for_growth(server):
                time.sleep(moments.uniform(0, 0.05))
                if server.poll() is not None:
                    break
                if what == "server":
                    server.kill()
                    server.wait()
                    server = start_server(mosquitto.broker, folder, rounds, log)
                else:
                    mosquitto.kill()
                    mosquitto.start()
                killed += 1
            code = server.wait(timeout=600)
            if code:
                raise SystemExit(f"the server ended with {code}:\n{log.read_text(encoding='utf-8')[-2000:]}")
            tags, sent_again, given_up = results.get(timeout=PATIENCE_S)
            clients.join()
        finally:
            server.kill()
            clients.kill()
        with JournalReader(folder / JOURNAL) as reader:
            records = list(reader)
    hashes = [record.model_sha256 for record in records]
    announced = {number: sorted(of_round) for number, of_round in tags.items() if number}
    wrong = [number for number, of_round in announced.items() if of_round != [expected[number - 1][:8]]]
    complete = sum(record.note["clients"] == CLIENTS for record in records)
    return {
        "killed": what,
        "kills": killed,
        "rounds": len(hashes),
        "rounds_with_all_clients": complete,
        "sent_again": sent_again,
        "given_up": given_up,
        "announced": len(announced),
        "announced_and_lost": len(wrong),
        "sha256": hashes[-1],
        "sha256_undisturbed": expected[-1],
        "as_undisturbed": hashes == expected,
        "seconds": round(time.monotonic() - begun, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def undisturbed(rounds: int) -> list[str]:
    """Return the hash of the model after every round of the local engine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        Run.create(folder, over_mqtt(load_config("demo", words(rounds)))).train()
        with JournalReader(folder / JOURNAL) as reader:
            return [record.model_sha256 for record in reader]


def main() -> None:
    """Kill both, and write down what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="of the server, and of the broker")
    parser.add_argument("--only", choices=("server", "broker"), help="kill one of them alone")
    parser.add_argument("--out", type=Path, help="file for the results; what is in it of the other kind stays")
    arguments = parser.parse_args()
    rounds = ROUNDS_PER_KILL * arguments.kills
    expected = undisturbed(rounds)
    rows = {}
    if arguments.out is not None and arguments.out.exists():
        rows = {row["killed"]: row for row in json.loads(arguments.out.read_text(encoding="utf-8"))["rows"]}
    for what in ("server", "broker") if arguments.only is None else (arguments.only,):
        rows[what] = train(arguments.kills, what, expected, rounds)
        print(json.dumps(rows[what]), flush=True)
        if arguments.out is not None:
            text = json.dumps({"rows": list(rows.values())}, indent=2)
            arguments.out.write_text(text + "\n", encoding="utf-8")
    if not all(row["as_undisturbed"] and not row["announced_and_lost"] for row in rows.values()):
        raise SystemExit("a disturbed training ended in other bits")


if __name__ == "__main__":
    main()
