import numpy as np

from fedmpdd.codecs import MPDD
from fedmpdd.privacy.linkage import linkage, rank_of_truth
from tests.privacy.fixtures import pictures, seen, smooth_network


def test_the_true_image_is_found_among_others() -> None:
    victim, flat = smooth_network()
    observations, images, labels = seen(victim, flat, MPDD(200, bits=1), count=4)
    others, other_labels = pictures(300, seed=5)
    assert linkage(observations, images, labels, others, other_labels, candidates=40) == (1.0, 40)
    # The wrong image in the first place is beaten by the right one.
    candidates = np.concatenate([others[:1], images[0]])
    assert rank_of_truth(observations[0], candidates, int(labels[0, 0])) == 1


def test_batches_have_no_single_image_to_link() -> None:
    victim, flat = smooth_network()
    observations, images, labels = seen(victim, flat, MPDD(5), count=1, batch=2)
    assert linkage(observations, images, labels, *pictures(20)) is None
