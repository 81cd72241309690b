"""Lemmas 4 and 5 on real digits: softmax regression, one image, and an attacker who knows the directions."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import MPDD
from fedmpdd.directions import Key, direction
from fedmpdd.tasks.data import load
from fedmpdd_paper.theory.claims import Row, Say, mean_interval
from fedmpdd_paper.theory.draws import squared

Float64 = NDArray[np.float64]
PIXELS, CLASSES = 784, 10
D = (PIXELS + 1) * CLASSES  # 7,850
IMAGES = 16
DATA_DIMENSION = (
    "the linear system has many solutions, but only gradients of data can have been sent: 784 pixels and a label, "
    "not d numbers. T·m ≥ 784 determines them, and pixels in [0, 1] make do with less"
)


def digits(count: int) -> tuple[Float64, NDArray[np.int64]]:
    """The first test images of the bundled digits [count, 784], pixels in [0, 1], and their labels."""
    examples = load("mnist-5k").test
    return examples.images[:count].reshape(count, PIXELS) / 255.0, examples.labels[:count]


@dataclass(frozen=True)
class Softmax:
    """Softmax regression; its parameters are the weights [10, 784], row by row, and then the ten biases."""

    weights: Float64
    biases: Float64

    @classmethod
    def zero(cls) -> "Softmax":
        """The model with all parameters at zero."""
        return cls(np.zeros((CLASSES, PIXELS)), np.zeros(CLASSES))

    @classmethod
    def initial(cls, seed: int) -> "Softmax":
        """PyTorch's initialisation: uniform within ±1/√784."""
        rng = np.random.default_rng(seed)
        draw = rng.uniform(-1, 1, (CLASSES, PIXELS + 1)) / math.sqrt(PIXELS)
        return cls(draw[:, :-1], draw[:, -1])

    def probabilities(self, image: Float64) -> Float64:
        """Of the classes."""
        scores = self.weights @ image + self.biases
        powers = np.exp(scores - scores.max())
        return np.asarray(powers / powers.sum())

    def residual(self, image: Float64, label: int) -> Float64:
        """Probabilities less the one-hot label: what multiplies (image, 1) in the gradient."""
        result = self.probabilities(image)
        result[label] -= 1
        return result

    def gradient(self, image: Float64, label: int) -> Float64:
        """Of the loss on one example, flat."""
        residual = self.residual(image, label)
        return np.concatenate([np.outer(residual, image).ravel(), residual])


def rows(say: Say) -> Iterator[Row]:
    """Measure all of it."""
    say("Lemma 4: the naive attacker on real digits")
    yield from _lemma_4()
    yield from _lemma_5(say)


# ----------------------------------------------------------------------------------------------------------- Lemma 4


def naive_image(estimate: Float64, residual: Float64) -> Float64:
    """The image whose gradient comes closest to ĝ at the zero model, in closed form.

    There the gradient is residual ⊗ (image, 1) with a residual that the label alone decides, so that the loss of
    Lemma 4 is a least squares problem in the image.
    """
    return np.asarray(residual @ estimate[: PIXELS * CLASSES].reshape(CLASSES, PIXELS) / squared(residual))


def _lemma_4() -> Iterator[Row]:
    m, draws, images = 400, 5, 40
    model, codec = Softmax.zero(), MPDD(m=400)
    shares, excesses = [], []
    for number, (image, label) in enumerate(zip(*digits(images), strict=True)):
        gradient = model.gradient(image, int(label))
        residual = model.residual(image, int(label))
        lipschitz = math.sqrt(squared(residual))  # the gradient is linear in the image here: this is L_v, exactly
        bound = (D - 1) / (m * lipschitz**2) * squared(gradient)
        keys = [Key(1_000 * number + draw) for draw in range(draws)]
        updates = codec.encode(np.tile(gradient.astype(np.float32), (draws, 1)), keys)
        errors = [squared(naive_image(codec.decode_mean([u]).astype(np.float64), residual) - image) for u in updates]
        shares.append(np.mean(errors) / bound)
        excesses.append(bound / float(np.sum(np.maximum(image, 1 - image) ** 2)))
    how = f"softmax regression at x = 0, where L_v = ‖p − c‖ exactly, m = {m}, {images} digits: "
    condition = "the attacker's loss reaches zero"
    corrected = (
        "‖v − v̂‖ ≥ (‖ĝ − g‖ − loss at v̂)/L_v, and at its minimum the loss is close to ‖ĝ − g‖: no gradient of an image "
        "comes near ĝ. An attacker who matches Uᵀg instead has an error of zero (Lemma 5)"
    )
    yield Row(
        "Lemma 4: E‖v − v̂‖² ≥ (d − 1)‖g‖²/(m·L_v²) for who minimises ‖ĝ − g(v̂)‖",
        how + f"error of the exact minimiser over the bound, {draws} draws each",
        mean_interval(shares),
        "≥",
        1.0,
        only_if=condition,
        corrected=corrected,
        true_value=PIXELS / (D - 1),
    )
    yield Row(
        "Lemma 4: the bound is an error that images in [0, 1] can have",
        how + "bound over the largest ‖v − v̂‖² that pixels in [0, 1] allow",
        mean_interval(excesses),
        "≤",
        1.0,
        only_if=condition,
        corrected=corrected,
    )


# ----------------------------------------------------------------------------------------------------------- Lemma 5


@dataclass(frozen=True)
class Observed:
    """What the server has of a client: the directions of its updates [T·m, d] and the scalars along them."""

    model: Softmax
    directions: NDArray[np.float32]
    scalars: Float64

    @cached_property
    def blocks(self) -> NDArray[np.float32]:
        """The directions' parts on the weights [class, T·m, pixel]."""
        weights = self.directions[:, : PIXELS * CLASSES].reshape(-1, CLASSES, PIXELS)
        return np.ascontiguousarray(weights.transpose(1, 0, 2))

    def linearised(self, image: Float64, label: int) -> tuple[Float64, Float64]:
        """Return A and b such that Uᵀg(v) − s ≈ A·v − b for images v near this one."""
        residual = self.model.residual(image, label)
        p = self.model.probabilities(image)
        change = (np.diag(p) - np.outer(p, p)) @ self.model.weights  # of the residual, per pixel
        single = image.astype(np.float32)
        on_classes = (
            np.stack([block @ single for block in self.blocks], axis=1) + self.directions[:, PIXELS * CLASSES :]
        )
        matrix = np.tensordot(residual.astype(np.float32), self.blocks, axes=1) + on_classes @ change
        misfit = on_classes @ residual - self.scalars
        return matrix, matrix @ image - misfit


def observe(model: Softmax, image: Float64, label: int, m: int, rounds: int, seed: int) -> Observed:
    """T rounds of m directions of one and the same gradient, encoded by the package, as the server sees them."""
    codec = MPDD(m=m)
    gradients = np.tile(model.gradient(image, label).astype(np.float32), (rounds, 1))
    updates = codec.encode(gradients, [Key(seed + number) for number in range(rounds)])
    scalars = np.concatenate([update.arrays[0] for update in updates]).astype(np.float64)
    known = np.stack([direction(update.key, m, j, D) for update in updates for j in range(m)])
    return Observed(model, known, scalars)


def invert(observed: Observed) -> tuple[Float64, int]:
    """Find image and label: Gauss–Newton on ‖Uᵀg(v) − s‖² with pixels in [0, 1], the label by trying all ten."""
    start = np.zeros(PIXELS)
    first = {label: boxed_least_squares(*observed.linearised(start, label), start, 50) for label in range(CLASSES)}
    label = min(first, key=lambda tried: _misfit(observed, first[tried], tried))
    image = first[label]
    for steps in (100, 400, 100, 100):
        matrix, wanted = observed.linearised(image, label)
        before, image = image, _on_free_pixels(matrix, wanted, boxed_least_squares(matrix, wanted, image, steps))
        if squared(image - before) < 1e-12:
            break
    return image, label


def _misfit(observed: Observed, image: Float64, label: int) -> float:
    gradient = observed.model.gradient(image, label).astype(np.float32)
    return squared(observed.directions @ gradient - observed.scalars)


def boxed_least_squares(matrix: Float64, wanted: Float64, start: Float64, steps: int) -> Float64:
    """Minimise ‖A·v − b‖² over pixels in [0, 1]: accelerated projected gradient, in float32 for speed."""
    a, b = matrix.astype(np.float32), wanted.astype(np.float32)
    image: NDArray[np.float32] = start.astype(np.float32)
    probe = np.ones(PIXELS, dtype=np.float32)
    for _ in range(20):  # the largest eigenvalue of AᵀA by powers, which come close from below
        probe = a.T @ (a @ (probe / np.linalg.norm(probe)))
    step = np.float32(1 / (1.2 * np.linalg.norm(probe)))
    ahead, pace = image, 1.0
    for _ in range(steps):
        after = np.clip(ahead - step * (a.T @ (a @ ahead - b)), 0, 1).astype(np.float32)
        faster = (1 + math.sqrt(1 + 4 * pace * pace)) / 2
        image, ahead, pace = after, after + np.float32((pace - 1) / faster) * (after - image), faster
    return image.astype(np.float64)


def _on_free_pixels(matrix: Float64, wanted: Float64, image: Float64) -> Float64:
    """Solve exactly for the pixels strictly between 0 and 1, if there are fewer than equations."""
    free = (image > 1e-3) & (image < 1 - 1e-3)
    if not 0 < free.sum() < len(wanted):
        return image
    fixed = np.where(free, 0.0, np.round(image))
    solved = np.linalg.lstsq(matrix[:, free], wanted - matrix @ fixed, rcond=None)[0]
    fixed[free] = np.clip(solved, 0, 1)
    return fixed


def _lemma_5(say: Say) -> Iterator[Row]:
    m, model = 100, Softmax.initial(seed=90)
    images, labels = digits(IMAGES)
    for rounds in (1, 2, 3, 4, 5, 6, 8):
        say(f"Lemma 5: {IMAGES} digits, each from {rounds * m} scalars, d = {D:,}")
        errors, right = [], 0
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            observed = observe(model, image, int(label), m, rounds, seed=10_000 * number)
            inverse, guessed = invert(observed)
            truth = model.gradient(image, int(label))
            errors.append(math.sqrt(squared(model.gradient(inverse, guessed) - truth) / squared(truth)))
            right += guessed == label
        # What is orthogonal to all directions seen is a share 1 − T·m/d of a gradient, squared.
        unseen = math.sqrt(1 - rounds * m / D)
        yield Row(
            f"Lemma 5: T = {rounds} < d/m = {D / m:.1f}, so g stays hidden (T·m = {rounds * m})",
            f"softmax regression at PyTorch's initialisation, one digit a client, m = {m}, {IMAGES} digits: "
            f"‖ĝ − g‖/‖g‖ of an attacker who matches Uᵀg; {right} of {IMAGES} labels right",
            mean_interval(errors),
            "≥",
            unseen,
            only_if="nothing is known of how gradients come about",
            corrected=DATA_DIMENSION,
        )
