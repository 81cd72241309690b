"""What one would write without this package: seeded ±1 directions in PyTorch and NumPy, from plain to well tuned.

All regenerate their directions from a seed at every call, as client and server must; none agrees with another on
the signs, nor with itself on another device or version, which is what the published stream is for.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Call = Callable[[], Any]  # arrays of one library or the other


def numpy_rivals(op: str, gradient: Float32, scalars: Float32) -> Iterator[tuple[str, Call]]:
    """Packed random bits, unpacked to a dense matrix, and one BLAS product: the fast way in NumPy."""
    d, m = gradient.size, scalars.size

    def minus() -> Float32:
        packed = np.frombuffer(np.random.default_rng(1).bytes(m * -(-d // 8)), np.uint8).reshape(m, -1)
        return np.unpackbits(packed, axis=1, count=d).astype(np.float32)

    # With B the 0/1 matrix of minus signs, U = 1 − 2B: the products need no ±1 matrix.
    if op == "encode":
        yield "numpy", lambda: gradient.sum() - 2 * (minus() @ gradient)
    else:
        yield "numpy", lambda: (scalars.sum() - 2 * (scalars @ minus())) / m


def torch_rivals(op: str, gradient: Float32, scalars: Float32) -> Iterator[tuple[str, Call]]:
    """Dense as written down, dense in place, packed bits, and a loop over directions."""
    import torch

    d, m = gradient.size, scalars.size
    g, s = torch.from_numpy(gradient), torch.from_numpy(scalars)
    generator = torch.Generator()
    shifts = torch.arange(8, dtype=torch.uint8)

    def plain() -> Any:
        return (torch.randint(0, 2, (m, d), generator=generator.manual_seed(1)) * 2 - 1).float()

    def in_place() -> Any:
        u = torch.randint(0, 2, (m, d), generator=generator.manual_seed(1), dtype=torch.float32)
        return u.mul_(2).sub_(1)

    def minus() -> Any:
        shape = (m, -(-d // 64))
        words = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator.manual_seed(1), dtype=torch.int64)
        return ((words.view(torch.uint8)[..., None] >> shifts) & 1).reshape(m, -1)[:, :d].float()

    def loop_encode() -> Any:
        generator.manual_seed(1)
        return [
            torch.dot(torch.randint(0, 2, (d,), generator=generator, dtype=torch.float32).mul_(2).sub_(1), g)
            for _ in range(m)
        ]

    def loop_decode() -> Any:
        generator.manual_seed(1)
        total = torch.zeros(d)
        for value in s.tolist():
            total.add_(
                torch.randint(0, 2, (d,), generator=generator, dtype=torch.float32).mul_(2).sub_(1), alpha=value / m
            )
        return total

    if op == "encode":
        yield "torch-dense", lambda: plain() @ g
        yield "torch-inplace", lambda: in_place() @ g
        yield "torch-bits", lambda: g.sum() - 2 * (minus() @ g)
        yield "torch-loop", loop_encode
    else:
        yield "torch-dense", lambda: s @ plain() / m
        yield "torch-inplace", lambda: s @ in_place() / m
        yield "torch-bits", lambda: (s.sum() - 2 * (s @ minus())) / m
        yield "torch-loop", loop_decode
