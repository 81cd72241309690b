"""From sentences to tensors: prompts, heads, next tokens, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedmpdd as fm
from fedmpdd.errors import ConfigError, DataError
from fedmpdd.tasks.data import Texts
from fedmpdd.tasks.losses import IGNORED
from tests.tasks.text_fixtures import LABELS, REVIEWS, Tokenizer, ends_of, reviews, write_reviews

ANSWERS = (" terrible", " great")


def test_prompts_are_padded_on_the_left_and_end_with_the_prompt() -> None:
    tokenizer = Tokenizer()
    prompt = fm.text.Prompt(tokenizer, ANSWERS)
    ids, mask, labels = prompt.examples(reviews())
    assert ids.shape == mask.shape == (8, 15)
    assert labels.tolist() == list(LABELS)
    for row, there, text in zip(ids, mask, REVIEWS, strict=True):
        tokens = tokenizer(f"{text} It was")["input_ids"]
        assert there.tolist() == [0] * (15 - len(tokens)) + [1] * len(tokens)
        assert row[there.bool()].tolist() == tokens
    assert prompt.tokens == tuple(tokenizer(word)["input_ids"][0] for word in ANSWERS)


def test_sentences_are_padded_on_the_right() -> None:
    tokenizer = Tokenizer(end=True)
    ids, mask, _ = fm.text.Sentences(tokenizer).examples(reviews())
    assert ids[1].tolist() == [*tokenizer("bad")["input_ids"], *[0] * (ids.shape[1] - 2)]
    assert mask[1].tolist() == [1, 1, *[0] * (ids.shape[1] - 2)]


@given(st.lists(st.text("ab {}", min_size=1).filter(str.strip), min_size=1, max_size=5), st.integers(4, 9))
def test_sentences_that_are_cut_keep_their_prompt(sentences: list[str], length: int) -> None:
    tokenizer = Tokenizer()
    prompt = fm.text.Prompt(tokenizer, ANSWERS, "Said: {sentence} It was", length=length, too_long="cut")
    texts = Texts(tuple(sentences), np.zeros(len(sentences), np.int64), ("x", "y"))
    ids, mask, _ = prompt.examples(texts)
    assert ids.shape[1] <= length
    for row, there, text in zip(ids, mask, sentences, strict=True):
        tokens = row[there.bool()].tolist()
        whole = tokenizer(f"Said: {text.strip()} It was")["input_ids"]
        assert tokens[-2:] == whole[-2:]
        assert tokens == whole or len(whole) > length or "  " in text


def test_a_sentence_that_is_too_long_is_an_error_that_says_how_many_are() -> None:
    tokenizer = Tokenizer()
    with pytest.raises(DataError, match=r'text 2 has 11 tokens, and length = 7 \(5 of 8 are longer\).*too_long="cut"'):
        fm.text.Sentences(tokenizer, length=7).examples(long_reviews())
    assert (fm.text.Sentences(tokenizer).lengths(long_reviews()) > 7).sum() == 5
    with pytest.raises(DataError, match="text 0 begins with a word that has more tokens than length = 2 leaves"):
        fm.text.Sentences(tokenizer, length=2, too_long="cut").examples(Texts(("a-b-c d",), np.array([0]), ("x", "y")))


def long_reviews() -> Texts:
    return Texts(tuple(text + 4 * " long" for text in REVIEWS), np.array(LABELS), ("-", "+"))


def test_the_limit_of_a_tokenizer_is_that_of_its_model() -> None:
    assert fm.text.Sentences(Tokenizer(limit=512)).length == 512
    assert fm.text.Sentences(Tokenizer()).length is None
    with pytest.raises(ConfigError, match="length = 600: expected a whole number, 1 to 512"):
        fm.text.Sentences(Tokenizer(limit=512), length=600)
    with pytest.raises(ConfigError, match="length = 0: expected a whole number, 1 or more"):
        fm.text.NextToken(length=0)


@pytest.mark.parametrize(
    ("words", "template", "message"),
    [
        ((" very-good", " bad"), "{sentence} It was", "word ' very-good' is 2 tokens after the prompt; expected one"),
        ((" bad", " bad"), "{sentence} It was", "words ' bad' and ' bad' are one token"),
        ((" bad",), "{sentence} It was", "expected one for each class"),
        (" bad", "{sentence} It was", "expected one for each class"),
        ((" bad", "good"), "{sentence} It was", "word 'good' is 1 tokens after the prompt.*begin it with a blank"),
        (ANSWERS, "It was", r"expected a text with \{sentence\} in it once"),
    ],
)
def test_prompts_that_cannot_be_meant(words: tuple[str, ...], template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fm.text.Prompt(Tokenizer(), words, template)


def test_a_tokenizer_that_ends_texts_is_none_for_prompts() -> None:
    with pytest.raises(ConfigError, match="the tokenizer ends a text with the special token 1"):
        fm.text.Prompt(Tokenizer(end=True), ANSWERS)


def test_texts_that_do_not_fit_an_encoder() -> None:
    prompt = fm.text.Prompt(Tokenizer(), ANSWERS)
    with pytest.raises(DataError, match="texts of 3 classes came, and there are words for 2"):
        prompt.examples(Texts(("a",), np.array([0]), ("x", "y", "z")))
    with pytest.raises(DataError, match="texts without classes came"):
        prompt.examples(Texts(("a",)))
    with pytest.raises(DataError, match="texts of type list came"):
        prompt.examples(["a"])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="texts without groups came"):
        fm.text.NextToken().clients(Texts(("abc",)))
    with pytest.raises(DataError, match="no text has two tokens"):
        fm.text.NextToken().examples(Texts(("a",)))
    with pytest.raises(ConfigError, match="tokenizer = 'gpt2': expected one of transformers"):
        fm.text.Sentences("gpt2")
    with pytest.raises(ConfigError, match='too_long = True: expected "error" or "cut"'):
        fm.text.Sentences(Tokenizer(), too_long=True)  # type: ignore[arg-type]


def test_a_tokenizer_without_padding_pads_with_its_end() -> None:
    ids, mask, _ = fm.text.Sentences(Tokenizer(pad=None, eos=7)).examples(reviews())
    assert set(ids[~mask.bool()].tolist()) == {7}
    ids, mask, _ = fm.text.Sentences(Tokenizer(pad=None, eos=None)).examples(reviews())
    assert set(ids[~mask.bool()].tolist()) == {0}


@given(st.lists(st.text("ab\u00fc", min_size=2, max_size=20), min_size=1, max_size=4), st.integers(1, 9))
def test_every_byte_but_the_first_is_predicted_once(lines: list[str], length: int) -> None:
    lines_of = fm.text.NextToken(length=length)
    texts = Texts(tuple(lines), groups=tuple(f"speaker {number}" for number in range(len(lines))))
    inputs, targets = lines_of.examples(texts)
    clients = lines_of.clients(texts)
    assert inputs.shape == targets.shape == (len(inputs), length)
    assert clients.partition.clients == len(lines)
    for number, line in enumerate(lines):
        mine = clients.partition.examples_of(number)
        predicted = targets[mine][targets[mine] != IGNORED]
        assert bytes(predicted.tolist()) == line.encode()[1:]
        assert bytes(inputs[mine][targets[mine] != IGNORED].tolist()) == line.encode()[:-1]


def test_a_model_of_bytes_learns_from_speakers() -> None:
    from fedmpdd.tasks.language_model import Transformer

    lines = fm.text.NextToken(length=16)
    texts = Texts(tuple(20 * word for word in ("ho! ", "ha, ", "he? ")), groups=("a", "b", "c"))
    task = fm.Task(
        model=lambda: Transformer(16, 256, width=16, depth=1, heads=2),
        clients=lines.clients(texts),
        test=lines.examples(texts),
    )
    history = fm.simulate(task, fm.FedSGD(), rounds=30, batch=4, lr=0.5, progress=False)
    assert ends_of(history)[1] < 3 < np.log(256)


def test_words_are_taken_from_a_table_to_a_task(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    write_reviews(path)
    texts = fm.text.read_csv(path, text="review", label="stars")
    examples = fm.text.Prompt(Tokenizer(), ANSWERS).examples(texts)
    clients = fm.partition(examples, 4, "dirichlet", alpha=0.5)
    assert sorted(int(n) for client in range(4) for n in clients.partition.examples_of(client)) == list(range(8))
    assert torch.equal(clients.store.gather(torch.arange(8))[-1], torch.tensor(LABELS))
