"""The numbers that docs/directions.md fixes, and nothing else."""

TILE = 2048  # coordinates per tile
TILE_BLOCKS = 16  # Philox blocks per tile
WORD_STRIDE = 64  # words per tile, and the distance between coordinates of neighbouring bits
RUN = 16 * TILE  # coordinates whose projections the CPU kernels add up on their own before they add runs to each other
QUAD = 4  # directions, or coordinates, whose signed values are added to each other first

DOMAIN_DIRECTIONS = 0
DOMAIN_DIAGONAL = 1
DOMAIN_PERMUTATION = 2
DOMAIN_ROUNDING = 3
DOMAIN_SEEDS = 4

FEISTEL_ROUNDS = 6  # from this order on; smaller matrices, whose halves mix less, take 24
FEISTEL_SMALL = 4_096
FEISTEL_ROUNDS_SMALL = 24
OUTER_ORDERS = (1, 12, 20, 28)  # a Hadamard matrix has order h · 2^k with h from here

MAX_D = 2**40
MAX_DIRECTIONS = 2**32  # direction indices are one 32-bit word of the counter
MAX_M = 2**31 - 1  # scalars of an update: votes of one-bit scalars are counted in 32 bits with a sign
MAX_SEED = 2**64 - 1
MAX_SLOT = 2**32 - 1


def hadamard_order(d: int) -> tuple[int, int]:
    """Return (h, k) of the smallest h · 2^k ≥ d; of two equal ones the smaller h."""
    orders = []
    for outer in OUTER_ORDERS:
        log2 = max(0, (-(-d // outer) - 1).bit_length())
        orders.append((outer << log2, outer, log2))
    _, outer, log2 = min(orders)
    return outer, log2


def hadamard_size(d: int) -> int:
    """Return the order of the Hadamard matrix whose rows are the directions of a gradient of d coordinates."""
    outer, log2 = hadamard_order(d)
    return outer << log2
