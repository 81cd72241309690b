"""What clients insist on, whoever carries the order."""

import pytest

from fedmpdd.codecs import MPDD, NO_KEY, Laplace
from fedmpdd.errors import ConfigError, OrderError
from fedmpdd.secure_sum import FEWEST_CLIENTS
from fedmpdd.uplink.policy import ClientPolicy, Order

CODEC = MPDD(m=8)


def test_the_fewest_clients_of_a_sum_are_those_of_the_protocol() -> None:
    assert ClientPolicy().fewest_clients == FEWEST_CLIENTS


def test_a_policy_that_asks_for_nothing_takes_any_order() -> None:
    ClientPolicy().check(Order(CODEC), sent=10**6)


@pytest.mark.parametrize(
    ("policy", "order", "sent", "reason"),
    [
        (ClientPolicy(codecs=("peaks",)), Order(CODEC), 0, "codec is mpdd"),
        (ClientPolicy(largest_clip=1.0), Order(CODEC), 0, "clip is None"),
        (ClientPolicy(largest_clip=1.0), Order(CODEC, protection={"clip": 2.0}), 0, "clip is 2.0"),
        (
            ClientPolicy(largest_clip=1.0, least_noise=0.5),
            Order(CODEC, protection={"clip": 1.0, "noise_multiplier": 0.1}),
            0,
            "noise_multiplier is 0.1",
        ),
        (ClientPolicy(most_updates=3), Order(CODEC), 3, "has sent 3 updates"),
        (ClientPolicy(secure=True), Order(CODEC), 0, "insists on secure sums"),
        (ClientPolicy(secure=True), Order(CODEC, secure={"clip": 1.0}, wants_statistics=True), 0, "batch norm"),
        (ClientPolicy(), Order(Laplace(noise=0.1), key=NO_KEY), 0, "takes the noise off again"),
    ],
)
def test_what_a_client_insists_on_is_refused_in_one_sentence(
    policy: ClientPolicy, order: Order, sent: int, reason: str
) -> None:
    with pytest.raises(OrderError, match=reason):
        policy.check(order, sent)


def test_noise_without_clipping_is_no_condition() -> None:
    with pytest.raises(ConfigError, match="needs largest_clip"):
        ClientPolicy(least_noise=1.0)
