import numpy as np
import pytest
import torch

import fedmpdd as fm
from fedmpdd.privacy.text_sums import solve_for_tokens
from fedmpdd.privacy.text_tokens import layout_of, shares
from tests.privacy.text_cases import Answers, sent, symbols, victim_of
from tests.tasks import tiny


def test_all_words_are_solved_for_in_whole_gradients() -> None:
    victim, numbers = victim_of(), np.arange(6)
    layout = layout_of(victim, numbers, (0, 1))
    updates = [sent(row, fm.FedSGD()) for row in victim.gradients_of(numbers[:, None])]
    solved = solve_for_tokens(victim, updates, layout)
    assert solved is not None
    truth = [row.numpy() for row in symbols()[0][:6, :5]]
    # One guess of 42 symbols finds one of 5 in one try of nine: half of 30 never.
    assert shares(solved, [np.unique(row) for row in truth]).diagonal().mean() > 0.5


def test_a_layer_that_sees_one_token_at_a_time_is_known() -> None:
    victim = victim_of()
    layers = victim.token_layers()
    assert [name.split(".lora_A")[0].rpartition("self_attn.")[2] for name in layers] == ["q_proj", "v_proj"]
    assert all(".layers.0." in name for name in layers)
    vectors = victim.token_vectors(layers[0])
    assert vectors.shape == (tiny.SYMBOLS, 32)
    assert torch.isfinite(vectors).all()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_where_layers_see_places_there_is_nothing_to_solve() -> None:
    model = fm.lora(tiny.bert(), targets=("query", "value"))

    class Bert(Answers):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids=ids, attention_mask=mask).logits
            return logits

    victim = victim_of(Bert(model))
    assert victim.token_layers() == []
    assert solve_for_tokens(victim, [], layout_of(victim, np.arange(1), (0, 1))) is None
