"""Models of texts: what padding, trimming and cached activations may not change."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedmpdd as fm
from fedmpdd.errors import ConfigError
from fedmpdd.tasks import text_models
from fedmpdd.tasks.losses import IGNORED, CrossEntropy
from fedmpdd.tasks.text import Prompt, Sentences
from fedmpdd.tasks.text_models import TextModel, cache_activations, occupied
from tests.tasks.text_fixtures import WORDS, Tokenizer, ends_of, reviews, tiny

pytest.importorskip("transformers", reason="the extra `llm` is not installed")

ANSWERS = (" terrible", " great")


def prepared(kind: str, layers: int = 3, trained: tuple[int, ...] = (2,), **settings: Any) -> tuple[Any, Any]:
    """A model whose last blocks are trained, and the examples that it takes."""
    model = tiny(kind, layers, **settings)
    encoder = Sentences(Tokenizer()) if kind == "bert" else Prompt(Tokenizer(), ANSWERS)
    wrapped = encoder.model(model)
    marks = [*(f".{number}." for number in trained), ".classifier."]
    for name, parameter in wrapped.named_parameters():
        parameter.requires_grad_(any(mark in name for mark in marks) and "weight" in name)
    return wrapped, encoder.examples(reviews())


def gradients(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of what is trained."""
    *given, targets = inputs
    loss = nn.functional.cross_entropy(model(*given), targets)
    parts = torch.autograd.grad(loss, [one for one in model.parameters() if one.requires_grad])
    return loss.detach(), torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_padding_changes_no_logit(kind: str) -> None:
    model, (ids, mask, _) = prepared(kind)
    together = model(ids, mask)
    alone = torch.cat([model(ids[i : i + 1], mask[i : i + 1]) for i in range(len(ids))])
    assert together.shape == (8, 2)
    assert torch.allclose(together, alone, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_columns_of_padding_change_neither_logits_nor_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (ids, mask, labels) = prepared(kind)
    some = mask.sum(dim=1) < 9
    cut = gradients(model, ids[some], mask[some], labels[some])
    assert occupied(mask[some]) != slice(0, ids.shape[1])
    monkeypatch.setattr(text_models, "occupied", lambda mask: slice(None))
    whole = gradients(model, ids[some], mask[some], labels[some])
    for one, other in zip(cut, whole, strict=True):
        assert torch.isfinite(one).all()
        assert torch.allclose(one, other, atol=1e-6)


def test_logits_of_words_are_those_of_the_language_model() -> None:
    prompt = Prompt(Tokenizer(), ANSWERS)
    model = tiny()
    ids, mask, _ = prompt.examples(reviews())
    sentence = ids[1][mask[1].bool()][None]
    expected = model(sentence).logits[0, -1, list(prompt.tokens)]
    assert torch.allclose(prompt.model(model)(ids, mask)[1], expected, atol=1e-6)


def test_a_base_in_half_precision_gives_float32() -> None:
    model, (ids, mask, labels) = prepared("llama")
    model.model.to(torch.bfloat16)
    assert model(ids, mask).dtype == torch.float32
    _, gradient = gradients(model, ids, mask, labels)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_cached_activations_give_the_same_loss_and_gradient(kind: str) -> None:
    model, examples = prepared(kind)
    tail, (cached,) = cache_activations(model, examples, batch=3)
    assert [part.shape for part in cached] == [(8, 15 - 2 * (kind == "bert"))] * 2 + [(*examples[0].shape, 16), (8,)]
    for rows in (torch.arange(8), torch.tensor([1, 6])):
        whole = gradients(model, *(part[rows] for part in examples))
        part = gradients(tail, *(part[rows] for part in cached))
        for one, other in zip(whole, part, strict=True):
            assert torch.allclose(one, other, atol=1e-6)
    computed = sum(one.numel() for one in tail.parameters())
    assert computed < sum(one.numel() for one in model.parameters())


def test_what_was_trained_on_activations_goes_back_into_the_whole_model() -> None:
    model, examples = prepared("llama")
    before = copy.deepcopy(model.state_dict())
    cached = cache_activations(model, examples)
    task = fm.Task(model=cached.model, clients=fm.partition(cached.examples[0], 4), test=cached.examples[0])
    history = fm.simulate(task, fm.FedSGD(), rounds=5, batch=2, lr=0.5, progress=False)
    whole = cached.restore(history.model)
    logits = history.model(*cached.examples[0][:-1])
    assert torch.allclose(whole(*examples[:-1]), logits, atol=1e-6)
    assert not torch.allclose(model(*examples[:-1]), logits, atol=1e-3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    shared = {one.data_ptr() for one in model.parameters() if not one.requires_grad}
    assert shared <= {one.data_ptr() for one in whole.parameters()}


def test_modes_are_left_as_they_were() -> None:
    model, examples = prepared("bert", hidden_dropout_prob=0.5)
    model.train()
    model.model.dropout.eval()
    cached = cache_activations(model, examples).examples[0][2]
    assert model.model.bert.encoder.layer[0].training
    assert not model.model.dropout.training
    assert torch.equal(cached, cache_activations(model.eval(), examples).examples[0][2])  # no dropout in it


def test_what_cannot_be_cached_is_refused() -> None:
    model, examples = prepared("llama", trained=(0, 2))
    with pytest.raises(ConfigError, match=r"the first of 3 blocks is trained.*such as layers 1 and 2"):
        cache_activations(model, examples)
    model, examples = prepared("llama")
    model.model.get_input_embeddings().requires_grad_()
    with pytest.raises(ConfigError, match="depends on a trained parameter, such as an embedding"):
        cache_activations(model, examples)
    model, examples = prepared("llama")
    with pytest.raises(ConfigError, match=r"expected one of Prompt\.model or Sentences\.model"):
        cache_activations(model.model, examples)
    with pytest.raises(ConfigError, match="examples 1 are"):
        cache_activations(model, examples, examples[:2])
    tail, (cached,) = cache_activations(model, examples)
    with pytest.raises(ConfigError, match="cached activations came to a whole model"):
        model(*cached[:-1])
    with pytest.raises(ConfigError, match="a model without its first blocks came with sentences"):
        tail(*examples[:-1])
    with pytest.raises(ConfigError, match="the model has no list of blocks"):
        cache_activations(TextModel(nn.Linear(2, 2)), examples)
    with pytest.raises(ConfigError, match=r"history\.model of this task"):
        cache_activations(model, examples).restore(nn.Linear(2, 2))


def test_a_padding_token_that_the_model_does_not_know() -> None:
    model = tiny("bert")
    with pytest.raises(ConfigError, match=r"padding token is 0, and the tokenizer's is 3; set model\.config\.pad"):
        Sentences(Tokenizer(pad=3)).model(model)
    with pytest.raises(ConfigError, match=r"expected a torch\.nn\.Module"):
        Prompt(Tokenizer(), ANSWERS).model("smollm2")  # type: ignore[arg-type]


@pytest.mark.parametrize("gradients", ["auto", "loop"])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_language_model_learns_its_answers(kind: str, gradients: str) -> None:
    model, examples = prepared(kind, trained=(1, 2))
    task = fm.Task(model=model, clients=fm.partition(examples, 4), test=examples)
    history = fm.simulate(
        task, fm.Peaks(m=14), rounds=30, batch=2, lr=0.05, server="adam", gradients=gradients, progress=False
    )
    first, last = ends_of(history)
    assert last < 0.8 * first


def test_clients_of_finite_differences_take_sentences() -> None:
    """They go through the model as one batch, with all of their inputs."""
    model, examples = prepared("llama", trained=(1, 2))
    task = fm.Task(model=model, clients=fm.partition(examples, 4), test=examples)
    history = fm.simulate(task, "decomfl:m=8:keys=shared", rounds=2, batch=2, lr=0.01, progress=False)
    assert np.isfinite(ends_of(history)).all()


def test_padding_counts_no_more_among_all_clients_than_in_one() -> None:
    loss, outputs = CrossEntropy(), torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([[[1, 2, 3], [4, 0, 1]], [[2, IGNORED, IGNORED], [0, 1, IGNORED]], [[1, 1, 1], [2, 3, 3]]])
    expected = [
        nn.functional.cross_entropy(some, own) for some, own in zip(torch.split(outputs, 2), targets, strict=True)
    ]
    assert torch.allclose(loss.per_client(outputs, targets), torch.stack(expected))
    whole = targets[::2]
    of_whole = loss.per_client(outputs[[0, 1, 4, 5]], whole)
    assert torch.allclose(of_whole, torch.stack([expected[0], expected[2]]))


def test_next_tokens_have_the_shape_of_cross_entropy() -> None:
    tokenizer = Tokenizer()
    lines = fm.text.NextToken(tokenizer, length=4)
    inputs, targets = lines.examples(reviews())
    model = tiny()
    logits = lines.model(model)(inputs)
    assert logits.shape == (len(inputs), WORDS, 4)
    first = tokenizer(reviews().texts[2])["input_ids"]
    expected = nn.functional.cross_entropy(model(torch.tensor([first[:4]])).logits[0], torch.tensor(first[1:5]))
    row = next(n for n, ids in enumerate(inputs.tolist()) if ids == first[:4])
    assert torch.allclose(nn.functional.cross_entropy(logits[row : row + 1], targets[row : row + 1]), expected)
    task = fm.Task(model=lines.model(model), clients=fm.partition((inputs, targets), 3), test=(inputs, targets))
    history = fm.simulate(task, fm.FedSGD(), rounds=8, batch=2, lr=0.5, progress=False)
    before, after = ends_of(history)
    assert after < before
