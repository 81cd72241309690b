"""From texts to tasks: what a tokenizer makes of sentences, and the model that learns from it.

An encoder knows the tokenizer. Its `examples` turns texts into tensors that `fm.partition` and `fm.Task` take, and its
`model` wraps a language model, with adapters or without, so that cross-entropy and accuracy apply as they are.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmpdd.errors import ConfigError, DataError
from fedmpdd.imports import quote
from fedmpdd.tasks.data import TextDataset, Texts, read_csv
from fedmpdd.tasks.data import load_texts as load
from fedmpdd.tasks.losses import IGNORED
from fedmpdd.tasks.task import Clients, partition
from fedmpdd.tasks.text_models import AnswerModel, Cached, NextTokenModel, TextModel, cache_activations

__all__ = [
    "Cached",
    "NextToken",
    "Prompt",
    "Sentences",
    "TextDataset",
    "TextModel",
    "Texts",
    "cache_activations",
    "load",
    "read_csv",
]

SLOT = "{sentence}"
_NO_LIMIT = 1_000_000  # what tokenizers without a limit say is far above
_BYTES = 256


class Sentences:
    """Sentences with one class each, for a model with a head: a sequence classifier.

    Args:
        tokenizer: of transformers.
        length: the most tokens of a sentence; what the tokenizer says its model takes, if left out.
        too_long: "error", or "cut" to drop words at the end of a sentence that is too long.

    Example:
        >>> sentences = Sentences(tokenizer, length=64)
        >>> data = load("banking77")
        >>> task = Task(
        ...     model=sentences.model(lora),
        ...     clients=partition(sentences.examples(data.train), 100, "dirichlet"),
        ...     test=sentences.examples(data.test),
        ... )

    """

    _side = "right"

    def __init__(self, tokenizer: Any, *, length: int | None = None, too_long: str = "error") -> None:
        if not callable(tokenizer):
            raise ConfigError(f"tokenizer = {quote(tokenizer)}: expected one of transformers")
        if too_long not in ("error", "cut"):
            raise ConfigError(f'too_long = {quote(too_long)}: expected "error" or "cut"')
        self.tokenizer = tokenizer
        self.length = _limit_of(tokenizer) if length is None else _checked_length(tokenizer, length)
        self.too_long = too_long

    def examples(self, texts: Texts) -> tuple[Tensor, Tensor, Tensor]:
        """Return tensors of texts: input_ids and attention_mask [texts, tokens], and the number of each one's class.

        Args:
            texts: with classes. They are padded to the longest of them.

        Raises:
            DataError: there are no classes, or a sentence is too long and may not be cut.

        """
        _check_texts(texts)
        if texts.labels is None:
            raise DataError("texts without classes came; name the column of their labels when you read them")
        rows = [self._tokens(text) for text in texts.texts]
        long = [number for number, row in enumerate(rows) if self.length is not None and len(row) > self.length]
        if long and self.too_long == "error":
            number = long[0]
            raise DataError(
                f"text {number} has {len(rows[number])} tokens, and length = {self.length} ({len(long):,} of "
                f'{len(texts):,} are longer); raise length, or drop words at the end with too_long="cut"'
            )
        for number in long:
            rows[number] = self._cut(texts.texts[number], number)
        ids, mask = _padded(rows, padding_of(self.tokenizer), self._side)
        return ids, mask, torch.from_numpy(texts.labels)

    def lengths(self, texts: Texts) -> NDArray[np.int64]:
        """Return how many tokens each text has: by them a length is chosen, and what "cut" would cut is counted.

        Args:
            texts: with classes or without.

        """
        _check_texts(texts)
        return np.array([len(self._tokens(text)) for text in texts.texts], dtype=np.int64)

    def model(self, model: nn.Module) -> TextModel:
        """Return a sequence classifier as a module that takes these examples.

        Args:
            model: of transformers, with a head of as many outputs as there are classes.

        Raises:
            ConfigError: the model looks for padding by another token than the tokenizer's.

        """
        wrapped = TextModel(model)
        config: Any = getattr(model, "config", None)
        padding = padding_of(self.tokenizer)
        if hasattr(config, "pad_token_id") and config.pad_token_id != padding:
            raise ConfigError(
                f"the model's padding token is {config.pad_token_id}, and the tokenizer's is {padding}; set "
                f"model.config.pad_token_id = {padding}"
            )
        return wrapped

    def _shown(self, text: str) -> str:
        return text.strip()

    def _tokens(self, text: str) -> list[int]:
        return _tokens_of(self.tokenizer, self._shown(text))

    def _cut(self, text: str, number: int) -> list[int]:
        """The tokens of as many words of a text as fit."""
        words = text.split()
        assert self.length is not None
        most = bisect_left(
            range(len(words)), self.length + 1, key=lambda n: len(self._tokens(" ".join(words[: n + 1])))
        )
        if most == 0:
            raise DataError(
                f"text {number} begins with a word that has more tokens than length = {self.length} leaves; raise it"
            )
        return self._tokens(" ".join(words[:most]))


class Prompt(Sentences):
    """Classification as a language model does it: a sentence, a prompt, and one word for each class.

    Args:
        tokenizer: of transformers.
        words: one for each class, in the order of the classes, with the blank that stands before it. Each must be one
            token.
        template: what the model reads; `{sentence}` stands for the sentence.
        length: the most tokens of a sentence with its prompt.
        too_long: "error", or "cut" to drop words at the end of a sentence that is too long; the prompt stays.

    Example:
        >>> prompt = Prompt(tokenizer, (" terrible", " great"), "{sentence} It was")
        >>> data = load("sst2")
        >>> task = Task(
        ...     model=prompt.model(lora),
        ...     clients=partition(prompt.examples(data.train), 100),
        ...     test=prompt.examples(data.dev),
        ... )

    """

    _side = "left"

    def __init__(
        self,
        tokenizer: Any,
        words: Sequence[str],
        template: str = f"{SLOT} It was",
        *,
        length: int | None = None,
        too_long: str = "error",
    ) -> None:
        super().__init__(tokenizer, length=length, too_long=too_long)
        if not isinstance(template, str) or template.count(SLOT) != 1:
            raise ConfigError(f'template = {quote(template)}: expected a text with {SLOT} in it once, "{SLOT} It was"')
        if isinstance(words, str) or len(words) < 2 or not all(isinstance(word, str) and word for word in words):
            raise ConfigError(f'words = {quote(words)}: expected one for each class, such as (" terrible", " great")')
        self.template = template
        self.words = tuple(words)
        self.tokens = tuple(self._token_of(word) for word in words)
        for number, token in enumerate(self.tokens):
            if token in self.tokens[:number]:
                other = self.words[self.tokens.index(token)]
                raise ConfigError(f"words {quote(other)} and {quote(self.words[number])} are one token; take others")

    def examples(self, texts: Texts) -> tuple[Tensor, Tensor, Tensor]:
        """See Sentences; padding is on the left, so that the last position is that of the answer."""
        _check_texts(texts)
        if texts.labels is not None and len(texts.classes) != len(self.words):
            raise DataError(
                f"texts of {len(texts.classes)} classes came, and there are words for {len(self.words)}; give one word "
                "for each class"
            )
        return super().examples(texts)

    def model(self, model: nn.Module) -> AnswerModel:
        """Return a causal language model as a module that takes these examples, and gives a logit for each word.

        Args:
            model: of transformers, for causal language modelling.

        """
        return AnswerModel(model, self.tokens)

    def _shown(self, text: str) -> str:
        return self.template.replace(SLOT, text.strip())

    def _token_of(self, word: str) -> int:
        """The token that a word is after the prompt, which may differ from what it is alone."""
        before = _tokens_of(self.tokenizer, self._shown("Well."))
        if before and before[-1] in getattr(self.tokenizer, "all_special_ids", ()):
            raise ConfigError(
                f"the tokenizer ends a text with the special token {before[-1]}, after which no word follows; take one "
                "of a causal language model"
            )
        after = _tokens_of(self.tokenizer, self._shown("Well.") + word)
        if after[: len(before)] != before or len(after) != len(before) + 1:
            count = len(_tokens_of(self.tokenizer, word, special=False))
            hint = "begin it with a blank" if not word.startswith(" ") else "take a more common word"
            raise ConfigError(f"word {quote(word)} is {count} tokens after the prompt; expected one: {hint}")
        return after[-1]


class NextToken:
    """Texts in pieces of equal length, each of whose positions predicts the next token.

    Args:
        tokenizer: of transformers; None for bytes, whose 256 values are the tokens.
        length: positions of a piece. Pieces follow each other without overlap, the last of a text is padded, and what
            is padded counts neither in the loss nor in the accuracy.

    Example:
        >>> lines = NextToken(tokenizer, length=64)
        >>> data = load("shakespeare")
        >>> task = Task(model=lines.model(lora), clients=lines.clients(data.train), test=lines.examples(data.test))

    """

    def __init__(self, tokenizer: Any = None, *, length: int = 64) -> None:
        if tokenizer is not None and not callable(tokenizer):
            raise ConfigError(f"tokenizer = {quote(tokenizer)}: expected one of transformers, or None for bytes")
        self.tokenizer = tokenizer
        self.length = _checked_length(tokenizer, length)

    def examples(self, texts: Texts) -> tuple[Tensor, Tensor]:
        """Return the pieces of texts: tokens, and those that follow them, both [pieces, length].

        Args:
            texts: with classes, groups or neither.

        """
        return self._pieces(texts)[0]

    def clients(self, texts: Texts) -> Clients:
        """Return the pieces of texts, dealt out by who said them: a client for each group.

        Args:
            texts: with groups.

        Raises:
            DataError: nobody knows who said the texts.

        """
        _check_texts(texts)
        if texts.groups is None:
            raise DataError(
                "texts without groups came; name the column that says whose each text is, or deal out their examples "
                "with fm.partition"
            )
        pieces, owners = self._pieces(texts)
        return partition(pieces, kind="natural", groups=[texts.groups[owner] for owner in owners])

    def model(self, model: nn.Module) -> NextTokenModel:
        """Return a causal language model as a module that takes these examples.

        Args:
            model: of transformers. A model of bytes that returns logits [examples, 256, positions] needs no wrapper.

        """
        return NextTokenModel(model)

    def _pieces(self, texts: Texts) -> tuple[tuple[Tensor, Tensor], list[int]]:
        """Tokens and those that follow, and the number of each piece's text."""
        _check_texts(texts)
        inputs, targets, owners = [], [], []
        for number, text in enumerate(texts.texts):
            tokens = torch.tensor(list(text.encode()) if self.tokenizer is None else _tokens_of(self.tokenizer, text))
            for begin in range(0, len(tokens) - 1, self.length):
                piece = tokens[begin : begin + self.length + 1]
                row, following = torch.zeros(self.length, dtype=torch.int64), torch.full((self.length,), IGNORED)
                row[: len(piece) - 1], following[: len(piece) - 1] = piece[:-1], piece[1:]
                inputs.append(row)
                targets.append(following)
                owners.append(number)
        if not inputs:
            raise DataError("no text has two tokens, of which one could predict the other; give longer texts")
        return (torch.stack(inputs), torch.stack(targets)), owners


def padding_of(tokenizer: Any) -> int:
    """Return the token that a tokenizer pads with, or what stands for it where there is none: its end of a text.

    The attention mask hides padding, so that its token does not matter to what a model says.

    Args:
        tokenizer: of transformers.

    """
    for name in ("pad_token_id", "eos_token_id", "unk_token_id"):
        token = getattr(tokenizer, name, None)
        if isinstance(token, int):
            return token
    return 0


def _tokens_of(tokenizer: Any, text: str, *, special: bool = True) -> list[int]:
    ids = tokenizer(text, add_special_tokens=special)["input_ids"]
    return [int(token) for token in ids]


def _padded(rows: Sequence[list[int]], padding: int, side: str) -> tuple[Tensor, Tensor]:
    """Tokens and attention mask [rows, longest]."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), padding)
    mask = torch.zeros(len(rows), longest, dtype=torch.int64)
    for number, row in enumerate(rows):
        where = slice(longest - len(row), None) if side == "left" else slice(0, len(row))
        ids[number, where] = torch.tensor(row, dtype=torch.int64)
        mask[number, where] = 1
    return ids, mask


def _limit_of(tokenizer: Any) -> int | None:
    """The most tokens that a tokenizer says its model takes, None where it does not say."""
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT else None


def _checked_length(tokenizer: Any, length: Any) -> int:
    limit = _limit_of(tokenizer)
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= (limit or length):
        most = "1 or more" if limit is None else f"1 to {limit}, which the tokenizer says its model takes"
        raise ConfigError(f"length = {quote(length)}: expected a whole number, {most}")
    return length


def _check_texts(texts: Any) -> None:
    if not isinstance(texts, Texts):
        raise DataError(
            f"texts of type {type(texts).__name__} came; expected fm.text.Texts: what fm.text.read_csv returns, or "
            "data.train of fm.text.load"
        )
