"""Bytes from the server, counted by hand."""

from fedmpdd.simulation.downlink import ModelDownlink, ReplayDownlink

OVERHEAD = 20  # magic, version, kind, two zeros, first round, number of bundles, checksum


def test_the_model_goes_to_everybody() -> None:
    down = ModelDownlink(1000)
    assert down.send([3, 4], 0) == 8000
    down.add(10)
    assert down.send([3], 1) == 4000


def test_a_client_gets_what_it_missed() -> None:
    down = ReplayDownlink(4000, header_bytes=500)
    assert down.send([1, 2], 0) == 2 * (OVERHEAD + 500)  # the initial model follows from the header
    down.add(100)
    assert down.send([1], 1) == OVERHEAD + 4 + 100
    down.add(200)
    assert down.send([1, 2, 3], 2) == (
        (OVERHEAD + 4 + 200) + (OVERHEAD + 8 + 300) + (OVERHEAD + 500 + 8 + 300)  # the last one is new
    )
    down.add(50)
    assert down.send([], 3) == 0


def test_the_model_where_that_is_less() -> None:
    down = ReplayDownlink(40, header_bytes=500)
    assert down.send([1], 0) == OVERHEAD + 500
    for _ in range(3):
        down.add(100)
    down_before = down.send([2], 3)
    assert down_before == OVERHEAD + 500 + 40
    assert down.send([1], 3) == OVERHEAD + 40
