"""Topics: a name that is one level, and a client's number in those that are its own."""

import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.mqtt.topics import Topics


def test_every_topic_of_a_training_begins_alike_and_is_another_one() -> None:
    topics = Topics("site-4.a_b")
    ours = [topics.terms, topics.round, topics.missing, topics.tail(3), topics.model(3), topics.update(3)]
    ours.append(topics.presence(3))
    assert len(set(ours)) == 7
    assert all(topic.startswith("fedmpdd/site-4.a_b/") for topic in ours)
    assert topics.update("+") == "fedmpdd/site-4.a_b/up/+"


@pytest.mark.parametrize("name", ["", "a/b", "#", "+", "a b", "a\n", "ä", "x" * 65, "٣", None, 3, "$SYS/x"])
def test_a_name_that_no_topic_can_have(name: object) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 64 letters"):
        Topics(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, 7, 10, 4_294_967_295])
def test_a_client_is_known_by_its_topics(number: int) -> None:
    topics = Topics("t")
    assert topics.client_of(topics.update(number)) == topics.client_of(topics.presence(number)) == number


@pytest.mark.parametrize("last", ["", "x", "-1", "01", "1.0", "٣", "1" * 11, "+", " 1", "1\n"])
def test_what_is_no_number_is_nobody(last: str) -> None:
    assert Topics("t").client_of(f"fedmpdd/t/up/{last}") is None
