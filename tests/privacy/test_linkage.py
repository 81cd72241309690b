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


def test_without_decoys_linkage_says_nothing() -> None:
    victim, flat = smooth_network()
    observations, images, labels = seen(victim, flat, MPDD(200), count=2)
    others, other_labels = pictures(40, seed=5)
    few = np.flatnonzero(other_labels == labels[0, 0])[:3]
    assert linkage(observations, images, labels, others[few], other_labels[few]) is None
    found = linkage(observations, images, labels, others, None)  # no classes: any other image is a decoy
    assert found == (1.0, 41)


def test_batches_have_no_single_image_to_link() -> None:
    victim, flat = smooth_network()
    observations, images, labels = seen(victim, flat, MPDD(5), count=1, batch=2)
    assert linkage(observations, images, labels, *pictures(20)) is None
