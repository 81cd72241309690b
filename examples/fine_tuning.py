"""A pretrained language model learns to tell good films from bad ones, and each client sends 17 bytes a round.

python examples/fine_tuning.py smollm2-135m 8 120
"""

import sys

import torch

import fedmpdd as fm

NAME, BLOCKS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
FILES = sys.argv[4:6]  # of one's own, with columns sentence and label; SST-2 where there are none
if FILES:
    train, test = (fm.text.read_csv(file, "sentence", "label", classes=("0", "1")) for file in FILES)
else:
    train, test = fm.text.load("sst2").train.split(2000)[1], fm.text.load("sst2").test

base, tokenizer = fm.load_pretrained(NAME, layers=BLOCKS)
prompt = fm.text.Prompt(tokenizer, (" terrible", " great"), "{sentence} It was", too_long="cut")
whole = prompt.model(fm.lora(base, rank=4, layers=2))
cached = fm.text.cache_activations(whole, prompt.examples(train), prompt.examples(test))  # of the blocks before these
examples, tests = cached.examples


@torch.no_grad()
def accuracy(model: torch.nn.Module) -> float:
    """Return the share of the test sentences that a model judges as people did."""
    batches = zip(*(torch.split(part, 64) for part in tests), strict=True)
    return sum(int((model(*inputs).argmax(1) == labels).sum()) for *inputs, labels in batches) / len(test)


task = fm.Task(cached.model, fm.partition(examples, 40), tests)
history = fm.simulate(
    task, fm.Peaks(m=14), rounds=ROUNDS, per_round=10, batch=4, lr=0.005, server="adam", keys="derived", progress=False
)
sent = history.last.payload_bytes / 40
print(f"accuracy {accuracy(cached.model):.3f} before, {accuracy(history.model):.3f} after; {sent:.0f} bytes a client")
fm.save_adapter(cached.restore(history.model).model, "adapters/films")
