"""An audit of one's own model, images and codecs: what does an attacker get of the updates that clients would send?

python examples/own_audit.py own_audit.html
"""

import sys

import numpy as np
import torch

import fedmpdd as fm


def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bright bars on a dark ground, in one of four directions, which is their class."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[0:16, 0:16] / 15
    images, labels = [], random.integers(4, size=count)
    for label in labels:
        angle = label * np.pi / 4
        distance = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle) - random.uniform(-0.25, 0.25)
        images.append(np.exp(-((distance / random.uniform(0.08, 0.2)) ** 2)))
    return np.stack(images)[:, np.newaxis].astype(np.float32), labels


def main() -> None:
    """Attack a small network's updates by three codecs, and write the page if one is named."""
    torch.manual_seed(0)
    images, labels = pictures(120)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5, stride=2, padding=2),
        torch.nn.Sigmoid(),
        torch.nn.Flatten(),
        torch.nn.Linear(6 * 64, 4),
    )
    result = fm.audit(
        model,
        images,
        [fm.MPDD(m=100), fm.MPDD(m=100, bits=1), "mpdd:m=100:clip=1:noise_multiplier=1.0"],
        labels=labels,
        attacks=["adaptive"],
        count=4,
        effort=0.2,
        progress=False,
    )
    print(result)
    if len(sys.argv) > 1:
        print(f"page: {result.report(sys.argv[1])}")


if __name__ == "__main__":
    main()
