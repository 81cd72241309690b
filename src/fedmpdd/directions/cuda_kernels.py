"""The stream's arithmetic on a GPU, in Gluon: what runs on the device and nothing of how it is called.

Gluon is Triton with layouts written out. That matters here: one thread owns whole Philox blocks, and four signs at a
time pick a precomputed sum, so that a multiplication by ±1 is never done. Names follow docs/directions.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BLOCK_SPAN = gl.constexpr(128)  # coordinates whose signs come from one Philox block
LINES = gl.constexpr(16)  # signed sums of four values: one table, 64 bytes
TILE_TABLE = gl.constexpr(8192)  # floats of the tables of a tile: 8 nibbles × 64 words × 16 sums
TRANSFORM = gl.constexpr(4096)  # values that one program transforms at a time
TRANSFORM_LOG2 = gl.constexpr(12)

_M0 = gl.constexpr(0xD2511F53)
_M1 = gl.constexpr(0xCD9E8D57)
_W0 = gl.constexpr(0x9E3779B9)
_W1 = gl.constexpr(0xBB67AE85)


# ------------------------------------------------------------------------------------------------------- Philox


@gluon.jit
def _wide(value, multiplier: gl.constexpr):
    """High and low half of a 64-bit product."""
    product = value.to(gl.uint64) * multiplier
    return (product >> 32).to(gl.uint32), product.to(gl.uint32)


@gluon.jit
def _round(c0, c1, c2, c3, k0, k1, number: gl.constexpr):
    high0, low0 = _wide(c0, _M0)
    high1, low1 = _wide(c2, _M1)
    key0: gl.constexpr = (number * _W0) & 0xFFFFFFFF
    key1: gl.constexpr = (number * _W1) & 0xFFFFFFFF
    return high1 ^ c1 ^ (k0 + key0), low1, high0 ^ c3 ^ (k1 + key1), low0


@gluon.jit
def _philox(c0, c1, c2, c3, k0, k1):
    """All ten rounds."""
    for number in gl.static_range(10):
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, number)
    return c0, c1, c2, c3


@gluon.jit
def _key(seeds, which):
    seed = gl.load(seeds + which).to(gl.uint64)
    return seed.to(gl.uint32), (seed >> 32).to(gl.uint32)


# In domain 0 the first three rounds fall apart into what depends on the direction alone and on the block alone.


@gluon.jit
def _direction_part(index, k0, k1):
    high, low = _wide(index ^ k0, _M0)
    return high ^ (k1 + _W1), low


@gluon.jit
def _block_part(block, k0, k1):
    high, x3 = _wide(block.to(gl.uint32), _M0)
    high, y1 = _wide(high ^ (block >> 32).to(gl.uint32) ^ k1, _M1)
    high, z3 = _wide(high ^ (k0 + _W0), _M0)
    twice: gl.constexpr = (2 * _W1) & 0xFFFFFFFF
    return x3, y1, high ^ (k1 + twice), z3


@gluon.jit
def _sign_words(a, b, x3, y1, z2, z3, k0, k1):
    """The four words of a block of a direction from its two parts: the rest of round 3, then seven more."""
    twice: gl.constexpr = (2 * _W0) & 0xFFFFFFFF
    high, c1 = _wide(a ^ x3, _M1)
    c0 = high ^ y1 ^ (k0 + twice)
    c2 = z2 ^ b
    c3 = z3
    for number in gl.static_range(3, 10):
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, number)
    return c0, c1, c2, c3


@gluon.jit
def rounding_words_kernel(words, seeds, slots, blocks, BLOCK: gl.constexpr):
    """The random words that round the scalars of an update: domain 3."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    client = gl.program_id(1)
    block = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    k0, k1 = _key(seeds, client)
    slot = gl.load(slots + client).to(gl.uint32)
    zero = gl.full([BLOCK], 0, gl.uint32, layout=layout)
    w0, w1, w2, w3 = _philox(block.to(gl.uint32), zero + slot, zero + 3, zero, k0, k1)
    base = words + (client.to(gl.int64) * blocks + block) * 4
    inside = block < blocks
    gl.store(base, w0.to(gl.int64), mask=inside)
    gl.store(base + 1, w1.to(gl.int64), mask=inside)
    gl.store(base + 2, w2.to(gl.int64), mask=inside)
    gl.store(base + 3, w3.to(gl.int64), mask=inside)


# --------------------------------------------------------------------------------------------- rademacher: encode


@gluon.jit
def coordinate_tables_kernel(gradients, tables, row, n, tiles):
    """For every four coordinates that share a nibble of a sign word: their 16 signed sums.

    tables[client, tile, nibble q, word t, signs] = (±g₀ ± g₁) + (±g₂ ± g₃), g_b the coordinate of bit 4q + b.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    tile = gl.program_id(0).to(gl.int64)
    client = gl.program_id(1).to(gl.int64)
    signs = gl.arange(0, 16, layout=gl.SliceLayout(0, layout))[None, :]
    for part in gl.static_range(4):
        item = part * 128 + gl.arange(0, 128, layout=gl.SliceLayout(1, layout))  # 64·q + t
        first = tile * 2048 + (item // 64) * 256 + item % 64
        source = gradients + client * row + first
        g0 = gl.load(source, mask=first < n, other=0.0)[:, None]
        g1 = gl.load(source + 64, mask=first + 64 < n, other=0.0)[:, None]
        g2 = gl.load(source + 128, mask=first + 128 < n, other=0.0)[:, None]
        g3 = gl.load(source + 192, mask=first + 192 < n, other=0.0)[:, None]
        front = gl.where(signs & 1 != 0, -g0, g0) + gl.where(signs & 2 != 0, -g1, g1)
        back = gl.where(signs & 4 != 0, -g2, g2) + gl.where(signs & 8 != 0, -g3, g3)
        target = tables + (client * tiles + tile) * TILE_TABLE + item[:, None] * LINES + signs
        gl.store(target, front + back)


@gluon.jit
def _four_blocks(
    tables, group, first_block, k0, k1, a, b, shifts, columns, DIRECTIONS: gl.constexpr, layout: gl.constexpr
):
    """The float32 total of four blocks, in the order that docs/directions.md gives for encoders."""
    sums = gl.full([DIRECTIONS, 8], 0.0, gl.float32, layout=layout)
    tile = group // 4
    for inner in gl.static_range(4):
        lane = (group % 4) * 4 + inner
        x3, y1, z2, z3 = _block_part(tile.to(gl.int64) * 16 + lane + first_block, k0, k1)
        w0, w1, w2, w3 = _sign_words(a, b, x3, y1, z2, z3, k0, k1)
        here = tables + tile.to(gl.int64) * TILE_TABLE + lane * LINES
        sums += gl.load(here + (columns + ((w0[:, None] >> shifts) & 15).to(gl.int32)))
        sums += gl.load(here + 256 + (columns + ((w1[:, None] >> shifts) & 15).to(gl.int32)))
        sums += gl.load(here + 512 + (columns + ((w2[:, None] >> shifts) & 15).to(gl.int32)))
        sums += gl.load(here + 768 + (columns + ((w3[:, None] >> shifts) & 15).to(gl.int32)))
    even, odd = gl.split(gl.reshape(sums, [DIRECTIONS, 4, 2]))
    even, odd = gl.split(gl.reshape(even + odd, [DIRECTIONS, 2, 2]))
    even, odd = gl.split(even + odd)
    return gl.convert_layout(even + odd, gl.SliceLayout(1, layout))


@gluon.jit
def rademacher_encode_kernel(
    tables, seeds, firsts, partials, first_block, tiles, parts, m,
    GROUPS: gl.constexpr, PER_THREAD: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Totals [client, part, m] of runs of GROUPS times four blocks: float64 of a run, float32 of a single group."""
    DIRECTIONS: gl.constexpr = PER_THREAD * 32 * WARPS
    layout: gl.constexpr = gl.BlockedLayout([PER_THREAD, 8], [32, 1], [WARPS, 1], [1, 0])
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    part = gl.program_id(1)
    client = gl.program_id(2)
    k0, k1 = _key(seeds, client)
    j = gl.program_id(0) * DIRECTIONS + gl.arange(0, DIRECTIONS, layout=rows)
    a, b = _direction_part((gl.load(firsts + client) + j).to(gl.uint32), k0, k1)
    nibble = gl.arange(0, 8, layout=gl.SliceLayout(0, layout))[None, :]
    shifts = (nibble * 4).to(gl.uint32)
    columns = nibble * 1024
    own = tables + client.to(gl.int64) * tiles * TILE_TABLE
    place = partials + (client.to(gl.int64) * parts + part) * m + j
    if GROUPS == 1:
        total = _four_blocks(own, part, first_block, k0, k1, a, b, shifts, columns, DIRECTIONS, layout)
        gl.store(place, total, mask=j < m)
    else:
        run = gl.full([DIRECTIONS], 0.0, gl.float64, layout=rows)
        for group in range(part * GROUPS, min(part * GROUPS + GROUPS, tiles * 4)):
            total = _four_blocks(own, group, first_block, k0, k1, a, b, shifts, columns, DIRECTIONS, layout)
            run += total.to(gl.float64)
        gl.store(place, run, mask=j < m)


@gluon.jit
def add_in_order_kernel(partials, sums, scalars, parts, m, GROUPS: gl.constexpr, BLOCK: gl.constexpr):
    """sums += the totals of runs, one after the other; a run is GROUPS of the parts."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [BLOCK // 32], [0])
    client = gl.program_id(1).to(gl.int64)
    j = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    inside = j < m
    total = gl.load(sums + client * m + j, mask=inside, other=0.0)
    source = partials + client * parts * m + j
    run = gl.full([BLOCK], 0.0, gl.float64, layout=layout)
    for start in range(0, parts, 8):  # eight loads at a time: waiting for each would take longer than all additions
        for offset in gl.static_range(8):
            part = (start + offset).to(gl.int64)
            run += gl.load(source + part * m, mask=inside & (part < parts), other=0.0).to(gl.float64)
            if GROUPS == 1:
                total += run
                run = gl.full([BLOCK], 0.0, gl.float64, layout=layout)
        if GROUPS > 1 and (start + 8) % GROUPS == 0:
            total += run
            run = gl.full([BLOCK], 0.0, gl.float64, layout=layout)
    total += run
    gl.store(sums + client * m + j, total, mask=inside)
    gl.store(scalars + client * m + j, total.to(gl.float32), mask=inside)


# --------------------------------------------------------------------------------------------- rademacher: decode


@gluon.jit
def coefficient_tables_kernel(scalars, factors, tables, m, quads, VOTES: gl.constexpr, QUADS: gl.constexpr):
    """For every four directions the 16 signed sums of their coefficients; of votes ±1, integers."""
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [QUADS // 32, 1], [1, 0])
    client = gl.program_id(1)
    quad = gl.program_id(0) * QUADS + gl.arange(0, QUADS, layout=gl.SliceLayout(1, layout))
    signs = gl.arange(0, 16, layout=gl.SliceLayout(0, layout))[None, :]
    factor = gl.load(factors + client)
    source = scalars + client.to(gl.int64) * m + quad * 4
    c0 = gl.load(source, mask=quad * 4 < m, other=0.0)
    c1 = gl.load(source + 1, mask=quad * 4 + 1 < m, other=0.0)
    c2 = gl.load(source + 2, mask=quad * 4 + 2 < m, other=0.0)
    c3 = gl.load(source + 3, mask=quad * 4 + 3 < m, other=0.0)
    if not VOTES:
        c0 = (c0.to(gl.float64) * factor).to(gl.float32)
        c1 = (c1.to(gl.float64) * factor).to(gl.float32)
        c2 = (c2.to(gl.float64) * factor).to(gl.float32)
        c3 = (c3.to(gl.float64) * factor).to(gl.float32)
    front = gl.where(signs & 1 != 0, -c0[:, None], c0[:, None]) + gl.where(signs & 2 != 0, -c1[:, None], c1[:, None])
    back = gl.where(signs & 4 != 0, -c2[:, None], c2[:, None]) + gl.where(signs & 8 != 0, -c3[:, None], c3[:, None])
    target = tables + (client.to(gl.int64) * quads + quad[:, None]) * LINES + signs
    gl.store(target, (front + back).to(tables.dtype.element_ty), mask=(quad < quads)[:, None] & (signs >= 0))


@gluon.jit
def _pairs(a, b):
    """Bits of two words, interleaved: those at even places, and those at odd ones."""
    return (a & 0x55555555) | ((b & 0x55555555) << 1), ((a >> 1) & 0x55555555) | (b & 0xAAAAAAAA)


@gluon.jit
def _quads(a, b):
    """The same for pairs of bits."""
    return (a & 0x33333333) | ((b & 0x33333333) << 2), ((a >> 2) & 0x33333333) | (b & 0xCCCCCCCC)


@gluon.jit
def _in_order(a, b, c, d):
    """Four tensors side by side along a new last axis."""
    return gl.join(gl.join(a, c), gl.join(b, d))


@gluon.jit
def _nibble_words(d0, d1, d2, d3, QUADS: gl.constexpr, BLOCKS: gl.constexpr):
    """Nibble n of result r holds bit 4n + r of the words of four directions."""
    even01, odd01 = _pairs(d0, d1)
    even23, odd23 = _pairs(d2, d3)
    r0, r2 = _quads(even01, even23)
    r1, r3 = _quads(odd01, odd23)
    return gl.reshape(_in_order(r0, r1, r2, r3), [QUADS, BLOCKS, 4])


@gluon.jit
def rademacher_decode_kernel(
    tables, factors, seeds, firsts, out, first_block, n, quads, clients,
    VOTES: gl.constexpr, BLOCKS: gl.constexpr, QUADS: gl.constexpr, NIBBLES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """out += Σ over clients and directions, each coordinate by itself and in order.

    A program owns BLOCKS Philox blocks. All its threads make the sign words of QUADS quads of directions, leave them
    in shared memory as nibbles, and then add table entries to the coordinates they own, quad after quad. `quads` is a
    multiple of four: tables of zeros fill it up, and adding a zero changes no bit of a sum that began at +0.
    """
    WORDS: gl.constexpr = BLOCKS * 16
    made: gl.constexpr = gl.BlockedLayout([1, 1], [32 // BLOCKS, BLOCKS], [WARPS, 1], [1, 0])
    used: gl.constexpr = gl.BlockedLayout([1, NIBBLES], [4 * NIBBLES, 8 // NIBBLES], [WARPS, 1], [1, 0])
    program = gl.program_id(0).to(gl.int64)
    block = program * BLOCKS + gl.arange(0, BLOCKS, layout=gl.SliceLayout(0, made))
    quad = gl.arange(0, QUADS, layout=gl.SliceLayout(1, made))
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    nibbles = gl.allocate_shared_memory(gl.uint32, [QUADS, WORDS], shared)
    # The same memory as rows that can be picked by number.
    rows = nibbles._reinterpret(gl.uint32, [QUADS, WORDS], gl.SwizzledSharedLayout(1, 1, 1, [0]))

    place = gl.arange(0, WORDS, layout=gl.SliceLayout(1, used))  # 16·block + 4·r + w
    owner = program * BLOCKS + place // 16
    nibble = gl.arange(0, 8, layout=gl.SliceLayout(0, used))
    shifts = (nibble * 4).to(gl.uint32)[None, :]
    base = (owner // 16) * 2048 + owner % 16 + (place // 4 % 4) * 64 + (place % 4) * 16
    coordinate = base[:, None] + (nibble * 256)[None, :]
    total = gl.load(out + coordinate, mask=coordinate < n, other=0.0)
    for client in range(clients):
        k0, k1 = _key(seeds, client)
        first = gl.load(firsts + client)
        x3, y1, z2, z3 = _block_part(block + first_block, k0, k1)
        lines = tables + client.to(gl.int64) * quads * LINES
        if VOTES:
            votes = gl.full([WORDS, 8], 0, gl.int32, layout=used)
        for start in range(0, quads, QUADS):
            index = (first + (start + quad) * 4).to(gl.uint32)
            a, b = _direction_part(index[:, None], k0, k1)
            p0, p1, p2, p3 = _sign_words(a, b, x3[None, :], y1[None, :], z2[None, :], z3[None, :], k0, k1)
            a, b = _direction_part(index[:, None] + 1, k0, k1)
            q0, q1, q2, q3 = _sign_words(a, b, x3[None, :], y1[None, :], z2[None, :], z3[None, :], k0, k1)
            a, b = _direction_part(index[:, None] + 2, k0, k1)
            r0, r1, r2, r3 = _sign_words(a, b, x3[None, :], y1[None, :], z2[None, :], z3[None, :], k0, k1)
            a, b = _direction_part(index[:, None] + 3, k0, k1)
            s0, s1, s2, s3 = _sign_words(a, b, x3[None, :], y1[None, :], z2[None, :], z3[None, :], k0, k1)
            words = _in_order(
                _nibble_words(p0, q0, r0, s0, QUADS, BLOCKS),
                _nibble_words(p1, q1, r1, s1, QUADS, BLOCKS),
                _nibble_words(p2, q2, r2, s2, QUADS, BLOCKS),
                _nibble_words(p3, q3, r3, s3, QUADS, BLOCKS),
            )
            nibbles.store(gl.reshape(words, [QUADS, WORDS]))
            for four in range(0, min(QUADS, quads - start), 4):
                for q in gl.static_range(4):
                    word = rows.index(four + q).load(gl.SliceLayout(1, used))
                    line = lines + (start + four + q) * LINES
                    value = gl.load(line + ((word[:, None] >> shifts) & 15).to(gl.int32))
                    if VOTES:
                        votes += value
                    else:
                        total += value
        if VOTES:
            total += gl.load(factors + client).to(gl.float32) * votes.to(gl.float32)
    gl.store(out + coordinate, total, mask=coordinate < n)


# ------------------------------------------------------------------------------------------------------- hadamard


@gluon.jit
def _diagonal_minus(tile, t, bit, k0, k1):
    """Where the diagonal (domain 1) is −1 in a tile: for words t of the tile and their bits."""
    block = tile * 16 + (t % 16)
    low = block.to(gl.uint32)
    zero = low * 0
    w0, w1, w2, w3 = _philox(low, zero, zero + 1, (block >> 32).to(gl.uint32), k0, k1)
    word = gl.where(t < 32, gl.where(t < 16, w0, w1), gl.where(t < 48, w2, w3))
    return (word[:, None] >> bit.to(gl.uint32)[None, :]) & 1 != 0


@gluon.jit
def diagonal_kernel(gradients, buffer, seeds, row, d, size):
    """buffer[client] = D·g, zeros from d to the order of the matrix; a tile per program."""
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [2, 2], [1, 0])
    tile = gl.program_id(0).to(gl.int64)
    client = gl.program_id(1).to(gl.int64)
    k0, k1 = _key(seeds, client)
    t = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    bit = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))
    c = tile * 2048 + t[:, None] + 64 * bit[None, :]
    value = gl.load(gradients + client * row + c, mask=c < d, other=0.0)
    value = gl.where(_diagonal_minus(tile, t, bit, k0, k1), -value, value)
    gl.store(buffer + client * size + c, value, mask=c < size)


@gluon.jit
def add_diagonal_kernel(buffer, out, seeds, d, size, groups, WARPS: gl.constexpr):
    """out += D·z of every group, in order; a tile per program."""
    layout: gl.constexpr = gl.BlockedLayout([1, 64 // WARPS], [32, 1], [2, WARPS // 2], [1, 0])
    tile = gl.program_id(0).to(gl.int64)
    t = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    bit = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))
    c = tile * 2048 + t[:, None] + 64 * bit[None, :]
    total = gl.load(out + c, mask=c < d, other=0.0)
    for group in range(groups):
        k0, k1 = _key(seeds, group)
        value = gl.load(buffer + group.to(gl.int64) * size + c, mask=c < d, other=0.0)
        total += gl.where(_diagonal_minus(tile, t, bit, k0, k1), -value, value)
    gl.store(out + c, total, mask=c < d)


@gluon.jit
def _butterfly(x, BIT: gl.constexpr):
    """(a, b) ← (a + b, a − b) of values whose positions differ in one bit, which each thread holds both of."""
    pairs = gl.permute(gl.reshape(x, [TRANSFORM >> (BIT + 1), 2, 1 << BIT]), [0, 2, 1])
    a, b = gl.split(pairs)
    return gl.reshape(gl.permute(gl.join(a + b, a - b), [0, 2, 1]), [TRANSFORM])


@gluon.jit
def near_butterflies_kernel(
    buffer, total, BITS: gl.constexpr, START: gl.constexpr, MIDDLE: gl.constexpr, END: gl.constexpr
):
    """Strides 1, 2, … 2^(BITS − 1) on 4,096 neighbouring values: two bits, five and five in registers."""
    offset = gl.program_id(0).to(gl.int64) * TRANSFORM + gl.arange(0, TRANSFORM, layout=START)
    x = gl.load(buffer + offset, mask=offset < total, other=0.0)
    for bit in gl.static_range(2):
        if bit < BITS:
            x = gl.convert_layout(_butterfly(x, bit), START, assert_trivial=True)
    x = gl.convert_layout(x, MIDDLE)
    for bit in gl.static_range(2, 7):
        if bit < BITS:
            x = gl.convert_layout(_butterfly(x, bit), MIDDLE, assert_trivial=True)
    x = gl.convert_layout(x, END)
    for bit in gl.static_range(7, 12):
        if bit < BITS:
            x = gl.convert_layout(_butterfly(x, bit), END, assert_trivial=True)
    offset = gl.program_id(0).to(gl.int64) * TRANSFORM + gl.arange(0, TRANSFORM, layout=END)
    gl.store(buffer + offset, x, mask=offset < total)


@gluon.jit
def far_butterflies_kernel(buffer, stride_log2, BITS: gl.constexpr, START: gl.constexpr, END: gl.constexpr):
    """BITS strides from 2^stride_log2 on: 2^BITS rows of neighbouring columns, 4,096 values in all."""
    COLUMNS_LOG2: gl.constexpr = TRANSFORM_LOG2 - BITS
    program = gl.program_id(0).to(gl.int64)
    groups_log2 = stride_log2 - COLUMNS_LOG2
    corner = ((program >> groups_log2) << (stride_log2 + BITS)) + ((program & ((1 << groups_log2) - 1)) << COLUMNS_LOG2)
    e = gl.arange(0, TRANSFORM, layout=START).to(gl.int64)
    place = buffer + corner + ((e >> COLUMNS_LOG2) << stride_log2) + (e & ((1 << COLUMNS_LOG2) - 1))
    x = gl.load(place)
    for bit in gl.static_range(5):
        x = gl.convert_layout(_butterfly(x, COLUMNS_LOG2 + bit), START, assert_trivial=True)
    if BITS > 5:
        x = gl.convert_layout(x, END)
        for bit in gl.static_range(5, BITS):
            x = gl.convert_layout(_butterfly(x, COLUMNS_LOG2 + bit), END, assert_trivial=True)
        e = gl.arange(0, TRANSFORM, layout=END).to(gl.int64)
        place = buffer + corner + ((e >> COLUMNS_LOG2) << stride_log2) + (e & ((1 << COLUMNS_LOG2) - 1))
    gl.store(place, x)


@gluon.jit
def _mixed(x):
    x = x ^ (x >> 16)
    x = x * 0x85EBCA6B
    x = x ^ (x >> 13)
    x = x * 0xC2B2AE35
    return x ^ (x >> 16)


@gluon.jit
def _feistel(left, right, ka, kb, left_size, right_size):
    """Two rounds."""
    step = (_mixed(right.to(gl.uint32) + ka).to(gl.uint64) * left_size) >> 32
    left = left + step
    left = gl.where(left >= left_size, left - left_size, left)
    step = (_mixed(left.to(gl.uint32) + kb).to(gl.uint64) * right_size) >> 32
    right = (right + step) & (right_size - 1)
    return left, right


@gluon.jit
def _rows(direction, k0, k1, size, right_log2, ROUNDS: gl.constexpr):
    """The rows of the matrix that are these directions (numbers below twice its order)."""
    direction = gl.where(direction >= size, direction - size, direction)
    one = gl.to_tensor(1).to(gl.uint64)
    right_size = one << right_log2
    left_size = size >> right_log2
    left = direction >> right_log2
    right = direction & (right_size - 1)
    zero = k0 * 0
    for pair in gl.static_range(ROUNDS // 4):
        a, b, c, d = _philox(zero + pair, zero, zero + 2, zero, k0, k1)
        left, right = _feistel(left, right, a, b, left_size, right_size)
        left, right = _feistel(left, right, c, d, left_size, right_size)
    if ROUNDS % 4 != 0:
        a, b, c, d = _philox(zero + ROUNDS // 4, zero, zero + 2, zero, k0, k1)
        left, right = _feistel(left, right, a, b, left_size, right_size)
    return (left << right_log2) + right


@gluon.jit
def gather_rows_kernel(
    buffer, scalars, seeds, firsts, outer_signs, m, size, right_log2, log2,
    OUTER: gl.constexpr, ROUNDS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """s_j = Σ_a P[row div 2^k][a] · x[a·2^k + row mod 2^k], a ascending."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [BLOCK // 32], [0])
    client = gl.program_id(1)
    k0, k1 = _key(seeds, client)
    j = gl.program_id(0).to(gl.int64) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    order = gl.to_tensor(size).to(gl.uint64)
    row = _rows((gl.load(firsts + client) + j).to(gl.uint64), k0, k1, order, right_log2, ROUNDS)
    inside = j < m
    outer_row = (row >> log2).to(gl.int32)
    inner = (row & ((gl.to_tensor(1).to(gl.uint64) << log2) - 1)).to(gl.int64)
    minus = gl.load(outer_signs + outer_row, mask=inside, other=0)
    total = gl.full([BLOCK], 0.0, gl.float32, layout=layout)
    own = buffer + client.to(gl.int64) * size + inner
    for a in gl.static_range(OUTER):
        value = gl.load(own, mask=inside, other=0.0)
        total += gl.where((minus >> a) & 1 != 0, -value, value)
        own += gl.to_tensor(1).to(gl.int64) << log2
    gl.store(scalars + client.to(gl.int64) * m + j, total, mask=inside)


@gluon.jit
def scatter_rows_kernel(
    buffer, scalars, factors, seeds, firsts, groups, m, size, right_log2, first_update,
    ROUNDS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """z[row of direction j] += c_j, for updates whose rows do not meet."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [BLOCK // 32], [0])
    update = first_update + gl.program_id(1)
    k0, k1 = _key(seeds, update)
    j = gl.program_id(0).to(gl.int64) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    inside = j < m
    row = _rows(
        (gl.load(firsts + update) + j).to(gl.uint64), k0, k1, gl.to_tensor(size).to(gl.uint64), right_log2, ROUNDS
    )
    value = gl.load(scalars + update.to(gl.int64) * m + j, mask=inside, other=0.0)
    coefficient = (value.to(gl.float64) * gl.load(factors + update)).to(gl.float32)
    place = buffer + gl.load(groups + update).to(gl.int64) * size + row.to(gl.int64)
    gl.store(place, gl.load(place, mask=inside, other=0.0) + coefficient, mask=inside)


@gluon.jit
def outer_transpose_kernel(buffer, size, log2, MINUS: gl.constexpr, BLOCK: gl.constexpr):
    """z′[a·2^k + b] = Σ_a′ P[a′][a]·z[a′·2^k + b], a′ ascending from +0, in place.

    MINUS: the rows of P as numbers, a bit set meaning −1.
    """
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [BLOCK // 32], [0])
    stride = gl.to_tensor(1).to(gl.int64) << log2
    b = gl.program_id(0).to(gl.int64) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    inside = b < stride
    own = buffer + gl.program_id(1).to(gl.int64) * size + b
    values = ()
    for a in gl.static_range(len(MINUS)):
        values = values + (gl.load(own + a * stride, mask=inside, other=0.0),)  # noqa: RUF005 (Triton knows no *)
    for a in gl.static_range(len(MINUS)):
        total = gl.full([BLOCK], 0.0, gl.float32, layout=layout)
        for other in gl.static_range(len(MINUS)):
            if (MINUS[other] >> a) & 1 != 0:
                total = total - values[other]
            else:
                total = total + values[other]
        gl.store(own + a * stride, total, mask=inside)


# -------------------------------------------------------------------------------------------------------- moments


@gluon.jit
def moments_kernel(gradients, partials, row, d, parts, SPAN: gl.constexpr, WARPS: gl.constexpr):
    """Σ g² and Σ g⁴ of a part of each gradient, in float64."""
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    STEP: gl.constexpr = 128 * WARPS
    part = gl.program_id(0).to(gl.int64)
    client = gl.program_id(1).to(gl.int64)
    second = gl.full([STEP], 0.0, gl.float64, layout=layout)
    fourth = gl.full([STEP], 0.0, gl.float64, layout=layout)
    for start in range(0, SPAN, STEP):
        c = part * SPAN + start + gl.arange(0, STEP, layout=layout)
        value = gl.load(gradients + client * row + c, mask=c < d, other=0.0).to(gl.float64)
        square = value * value
        second += square
        fourth += square * square
    place = partials + (client * parts + part) * 2
    gl.store(place, gl.sum(second, 0))
    gl.store(place + 1, gl.sum(fourth, 0))
