"""A small transformer that predicts the next byte at every position of a text."""

import math

import torch
from torch import Tensor, nn


class Transformer(nn.Module):
    """A decoder of `depth` blocks: attention to what came before, then a network of its own per position.

    Written with plain matrix products, which forward-mode derivatives and `torch.func.vmap` can follow everywhere.
    """

    def __init__(self, length: int, symbols: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        blocks = [_Block(width, heads) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        nn.init.normal_(self.symbols.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)
        for block in blocks:  # the sum over blocks keeps its size whatever the depth
            nn.init.normal_(block.mixed.weight, std=0.02 / math.sqrt(2 * depth))
            nn.init.normal_(block.out.weight, std=0.02 / math.sqrt(2 * depth))

    def forward(self, texts: Tensor) -> Tensor:
        """Return logits [n, symbols, length] of texts [n, 1, 1, length], bytes as numbers."""
        ids = texts.flatten(1).long()
        hidden = self.symbols(ids) + self.positions[: ids.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(hidden)))
        return logits.transpose(1, 2)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.before_network = nn.LayerNorm(width)
        self.into = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.mixed(self._attention(self.before_attention(hidden)))
        network: Tensor = self.out(nn.functional.gelu(self.into(self.before_network(hidden))))
        return hidden + network

    def _attention(self, hidden: Tensor) -> Tensor:
        texts, length, width = hidden.shape
        parts = self.queries_keys_values(hidden).view(texts, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(width // self.heads)
        later = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
        mixed: Tensor = weights @ values
        return mixed.transpose(1, 2).reshape(texts, length, width)
