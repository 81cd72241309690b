"""A pretrained language model learns to tell good films from bad ones, and each client sends 17 bytes in a round.

python examples/fine_tuning.py minilm-l6 200 [TRAIN.csv TEST.csv]
"""

import sys

import torch

import fedmpdd as fm

name, rounds, *files = sys.argv[1:]
if files:  # of one's own, with columns sentence and label
    train, test = (fm.text.read_csv(file, "sentence", "label", classes=("0", "1")) for file in files)
else:
    data = fm.text.load("sst2")
    train, test = data.train.split(2000)[1], data.test

base, tokenizer = fm.load_pretrained(name, classes=2)
adapted = fm.lora(base, rank=1, targets=("query", "value"), layers=2, head=("classifier",))
sentences = fm.text.Sentences(tokenizer, length=64, too_long="cut")
cached = fm.text.cache_activations(sentences.model(adapted), sentences.examples(train), sentences.examples(test))
train_examples, test_examples = cached.examples


@torch.no_grad()
def accuracy(model: torch.nn.Module) -> float:
    """Return the share of the test sentences that a model puts into their class."""
    batches = zip(*(torch.split(part, 64) for part in test_examples), strict=True)
    return sum(int((model(*inputs).argmax(1) == labels).sum()) for *inputs, labels in batches) / len(test)


task = fm.Task(cached.model, fm.partition(train_examples, 100), test_examples)
settings = {"per_round": 20, "batch": 2, "lr": 0.015, "server": "adam", "schedule": "cosine", "keys": "derived"}
history = fm.simulate(task, fm.Peaks(m=14), rounds=int(rounds), evaluate_every=int(rounds), progress=False, **settings)
sent = history.last.payload_bytes / 100
print(f"accuracy {accuracy(cached.model):.3f} before and {accuracy(history.model):.3f} after {sent:.0f} bytes a client")
fm.save_adapter(cached.restore(history.model).model, "adapters/films")
