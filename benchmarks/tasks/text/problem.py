"""Examples, model and settings of the text, which all three programs share."""

from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

CLIENTS, EXAMPLES, PER_ROUND = 100, 100, 20  # clients, examples of each, clients in a round
LR, ROUNDS = 0.5, 60
CONTEXT, SYMBOLS = 16, 128  # bytes that the model sees, and the values that a byte can have


def make_model() -> nn.Module:
    """Return the model as it is before the first round: 51,456 parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(17)
        return nn.Sequential(
            nn.Embedding(SYMBOLS, 16),
            nn.Flatten(),
            nn.Linear(16 * CONTEXT, 128),
            nn.Tanh(),
            nn.Linear(128, SYMBOLS),
        )


def load_clients() -> list[tuple[Tensor, Tensor]]:
    """Return the contexts of every client, and the byte that follows each."""
    contexts, following = _examples()
    count = CLIENTS * EXAMPLES
    return list(zip(torch.split(contexts[:count], EXAMPLES), torch.split(following[:count], EXAMPLES), strict=True))


def load_test() -> tuple[Tensor, Tensor]:
    """Return 1,000 other examples."""
    contexts, following = _examples()
    return contexts[-1_000:], following[-1_000:]


def evaluate(model: nn.Module) -> tuple[float, float]:
    """Return loss and accuracy on the test examples."""
    contexts, following = load_test()
    with torch.no_grad():
        logits = model(contexts)
    return functional.cross_entropy(logits, following).item(), (logits.argmax(1) == following).float().mean().item()


def _examples() -> tuple[Tensor, Tensor]:
    """Return places of the help texts, in a random order: of each the context, and the byte that follows."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    values = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    places = torch.randperm(len(values) - CONTEXT, generator=torch.Generator().manual_seed(1))
    places = places[: CLIENTS * EXAMPLES + 1_000]
    return values[places[:, None] + torch.arange(CONTEXT)], values[places + CONTEXT]
