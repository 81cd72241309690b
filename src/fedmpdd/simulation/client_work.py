"""What a client computes in a round: passes through the model, and whether it has to remember activations for one."""

from dataclasses import dataclass

from fedmpdd.errors import ConfigError
from fedmpdd.simulation.config import RunConfig


@dataclass(frozen=True)
class ClientWork:
    """Passes of one client in one round, each of one minibatch.

    Attributes:
        steps: of the client before it sends.
        forwards: forward passes, those before a backward pass among them.
        backwards: backward passes.
        tangents: forward passes that carry a derivative along a direction with them.
        keeps_activations: whether the passes need the memory of training; else that of inference is enough.

    """

    steps: int
    forwards: int
    backwards: int
    tangents: int
    keeps_activations: bool


def client_work(
    config: RunConfig, *, examples: int | None = None, round_number: int = 0, client: int = 0
) -> ClientWork:
    """Return what a client computes in a round.

    Passes are counted, not timed: a backward pass takes about as long as two forward ones, and so does a tangent
    (docs/forward.md has measurements). Encoding is not counted, nor what a simulation computes to report losses.

    Args:
        config: of the run.
        examples: of the client; needed with local_epochs alone.
        round_number: from 0; the number of directions may grow with it.
        client: which one, where clients have different links.

    Returns:
        The passes.

    Raises:
        ConfigError: where local_epochs is given without examples.

    Example:
        >>> client_work(load_config("demo", ["client=forward", "codec.m=8"])).tangents
        8

    """
    steps = config.local_steps
    if config.local_epochs is not None:
        if examples is None:
            raise ConfigError(
                f"local_epochs = {config.local_epochs}: the steps of a client follow from its examples; give examples="
            )
        whole = config.local_epochs * (examples // config.batch)
        steps = min(steps, whole) if steps > 1 else whole
    if config.source == "backward":
        return ClientWork(steps, forwards=steps, backwards=steps, tangents=0, keeps_activations=True)
    codec = config.of_client(client).codec.build()
    count = max(steps, codec.at_round(round_number).along_directions().count)  # one a step at least
    if config.source == "forward":
        return ClientWork(steps, forwards=0, backwards=0, tangents=count, keeps_activations=False)
    return ClientWork(steps, forwards=2 * count, backwards=0, tangents=0, keeps_activations=False)
