"""`fedmpdd mqtt`: a training whose clients are at an MQTT broker: the server, and clients."""

import re
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from fedmpdd.cli.shared import (
    Command,
    Config,
    DataDir,
    Json,
    Overrides,
    TrustImports,
    blame_user_code,
    print_json,
    resume_hint,
    training,
    trust_and_settings,
)
from fedmpdd.display import messages, readable_bytes, round_display
from fedmpdd.errors import ConfigError, RunError

app = typer.Typer(
    help="Train over an MQTT 5 broker: an update is a few bytes on the socket (docs/mqtt.md).", no_args_is_help=True
)
Address = Annotated[
    str, typer.Option("--broker", help="mqtt://user:password@host:port, or mqtts:// for TLS; {client} is a number.")
]
Name = Annotated[str, typer.Option(help="Of the training, in its topics.")]
Ca = Annotated[str | None, typer.Option("--ca", help="File with the certificates that the broker's must come from.")]
Certificate = Annotated[str | None, typer.Option(help="File with the certificate of this side; {client} is a number.")]
KeyFile = Annotated[str | None, typer.Option("--key", help="File with its key, if that is not in the same file.")]
LOCAL = "mqtt://localhost:1883"
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def parse_numbers(text: str) -> list[int]:
    """Return the numbers of clients that a text like "0-24,30" lists, or raise ConfigError.

    >>> parse_numbers("0-3,7")
    [0, 1, 2, 3, 7]
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last - first >= 100_000:
            raise ConfigError(f"clients {text!r:.60}: expected numbers and ranges, such as 0-24,30")
        numbers += range(first, last + 1)
    return numbers


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@app.command(cls=Command)
def serve(
    config: Annotated[str | None, typer.Argument(help="A TOML file, or a shipped name such as demo.")] = None,
    overrides: Overrides = None,
    broker: Address = LOCAL,
    name: Name = "training",
    out: Annotated[Path | None, typer.Option(help="The run folder to make; default: runs/CONFIG-NUMBER.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another training of that name at the broker.")
    ] = False,
    ca: Ca = None,
    certificate: Certificate = None,
    key: KeyFile = None,
    trust_imports: TrustImports = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Be the server of a training: begin rounds, take what clients send, step, keep a journal, and evaluate.

    It can be killed at any moment; with --resume it goes on, and clients send again what it did not acknowledge.

    Example: fedmpdd mqtt serve demo codec=peaks:m=14 --broker mqtt://localhost --name site-4

    Example: fedmpdd mqtt serve --resume runs/demo-001 --broker mqtt://localhost --name site-4
    """
    runs = training()
    from fedmpdd.mqtt.broker import Broker
    from fedmpdd.mqtt.federation import Farewell, MqttFederation, over_mqtt
    from fedmpdd.runs.driver import progress

    reached = Broker.parse(broker, ca=ca, certificate=certificate, key=key)

    def engine(settings: Any, task: Any) -> Any:
        if settings != over_mqtt(settings):
            raise RunError(
                f"{resume} is no run of `fedmpdd mqtt serve`: its config has journal = {settings.journal}, downlink = "
                f"{settings.downlink!r}, and over MQTT these are True and 'replay'; go on with: fedmpdd run --resume "
                f"{resume}"
            )
        return MqttFederation(settings, task, reached, name, replaces=replace)

    if resume is not None:
        given = [] if config is None else [config, *(overrides or [])]
        if out is not None or "=" not in (config or "="):
            raise RunError(f"--resume {resume} goes on with the config of that run; give no CONFIG and no --out")
        trusted, settings = trust_and_settings(given, trust_imports)
        current = runs.Run.resume(resume, data_dir, trust_imports=trusted, engine=engine, **settings)
    elif config is None:
        raise ConfigError("name a config, like `fedmpdd mqtt serve demo`, or a run to --resume")
    else:
        from fedmpdd.simulation import load_config

        wanted = over_mqtt(load_config(config, overrides))
        current = runs.Run.create(out or runs.free_folder(config), wanted, data_dir, engine=engine)
    messages.print(f"run folder: {current.folder}")
    # Between rounds as within: the journal has all that was acknowledged, and the wait for clients may be long.
    signal.signal(signal.SIGINT, _stop)
    how_to_go_on = f"stopped; go on with: fedmpdd mqtt serve --resume {current.folder} --broker {reached} --name {name}"
    with round_display() as start, resume_hint(how_to_go_on), blame_user_code(current.config.model_dump(mode="json")):
        show = start(
            current.folder.name, current.config.rounds, current.federation.next_round, score=current.config.score
        )
        signal.signal(signal.SIGTERM, _stop)  # too: `resume_hint` lets a round end first, which may wait for ever
        summary = current.train(callbacks=[progress(show), Farewell()])
    if as_json:
        print_json(summary)
        return
    print(f"{summary['rounds']} rounds, uplink {readable_bytes(summary['uplink_bytes'])}")
    print(f"model sha256 {summary['model_sha256']}")


def _secure_policy(ledgers: Path | None) -> Any:
    """What clients of secure sums insist on: that these are sums, and a ledger that outlives the process."""
    if ledgers is None:
        raise ConfigError(
            "secure sums need a folder where clients write down what they answered, so that a client that is started "
            "anew answers nothing twice: give --ledgers FOLDER, the same one as long as the client lives"
        )
    from fedmpdd.secure_sum import FileLedger
    from fedmpdd.uplink.policy import ClientPolicy

    ledgers.mkdir(parents=True, exist_ok=True)
    return ClientPolicy(secure=True, ledger=lambda number: FileLedger(ledgers / f"client-{number}.json"))


@app.command(cls=Command)
def client(
    config: Config,
    overrides: Overrides = None,
    clients: Annotated[str, typer.Option(help="Which clients this process is, such as 0-24,30.")] = "0",
    broker: Address = LOCAL,
    name: Name = "training",
    ca: Ca = None,
    certificate: Certificate = None,
    key: KeyFile = None,
    ledgers: Annotated[
        Path | None,
        typer.Option(help="Folder where clients of secure sums write down what they answered; needed for these."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Be some clients of a training: follow the model, compute gradients on their data, send a few bytes each.

    Server and clients need the same config. A client that is started anew goes on where the training is.

    Example: fedmpdd mqtt client demo codec=peaks:m=14 --clients 0-49 --broker mqtt://localhost --name site-4

    Example: fedmpdd mqtt client demo codec=mpdd:m=400:keys=shared secure.clip=1.0 --ledgers ledgers
    """
    training()
    from fedmpdd.mqtt.broker import Broker
    from fedmpdd.mqtt.client import Client
    from fedmpdd.mqtt.federation import over_mqtt, prepare_with
    from fedmpdd.simulation import load_config

    reached = Broker.parse(broker, ca=ca, certificate=certificate, key=key)
    settings = over_mqtt(load_config(config, overrides))
    numbers = parse_numbers(clients)
    policy = None
    if settings.secure is not None:
        policy = _secure_policy(ledgers)
    taking_part = Client(reached, name, numbers, prepare=prepare_with(settings, data_dir), policy=policy)
    messages.print(f"clients {clients} of training {name} at {reached}")
    with resume_hint("stopped; the training goes on without these clients"):
        taking_part.run()
    messages.print("the training is over")
