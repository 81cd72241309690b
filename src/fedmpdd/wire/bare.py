"""Bare frames: an update as its payload and nothing else. docs/wire-format.md, "Bare frame", specifies them.

The transport says where a frame ends, who sent it and in which round. Codec and d were agreed on, and the key follows
from the session's seed, the round and the client.
"""

import hmac
from typing import Literal, Self

from fedmpdd.codecs import NO_KEY, Codec, Update
from fedmpdd.codecs.registry import check_is_codec
from fedmpdd.directions import Key, check_key, derive_seed, round_seed
from fedmpdd.directions.keys import check_client, check_round
from fedmpdd.errors import CodecError, FrameLengthError, KeyRangeError
from fedmpdd.wire.frames import check_dimension, header_of, payload_of, read_arrays

AssignedKeys = Literal["derived", "shared", "partitioned"]
WAYS: tuple[AssignedKeys, ...] = ("derived", "shared", "partitioned")  # in this order they are numbered from 0
SECRET_DOMAIN = b"fedmpdd bare 1\0"  # of what secrets are stretched to: no other use of a secret begins so
FEWEST_SECRET_BYTES = 16


class BareSession:
    """Bare frames, for two sides that agree on codec, d and a seed, over a transport that can be trusted.

    A frame is scale and scalars: no magic, no session tag, no checksum. What a frame cannot show, the transport must
    vouch for: who sent it, in which round, that it came whole, and once. A damaged frame, or one that is read as
    another client's or another round's, decodes to a wrong direction in silence.

    Args:
        codec: of both sides, for the model that is trained: see Codec.for_shapes. It may change with the round.
        d: coordinates of the model.
        seed: of the session, from which keys follow. A new one for every training: `from_secret` makes one.
        keys: "derived" gives each client a seed of its own in each round; "shared" gives all clients of a round one
            key; "partitioned" gives them one seed, and each a slot of it.

    Raises:
        InputError: the codec does not go with d, or the seed or the way of keys is none.

    Example:
        >>> session = BareSession(Peaks(m=7), d=13_426, seed=2024)
        >>> key = session.key(round_number=0, client=5)
        >>> update = session.codec_at(0).encode(gradient[np.newaxis], [key])[0]
        >>> frame = session.pack(update, round_number=0, client=5)
        >>> len(frame)
        9
        >>> session.unpack(frame, round_number=0, client=5) == update
        True

    """

    def __init__(self, codec: Codec, d: int, seed: int, *, keys: AssignedKeys = "derived") -> None:
        self.codec = check_is_codec(codec)
        self.d = check_dimension(codec, d)
        self.seed = check_key(seed).seed
        self.keys = _check_way(keys)

    @classmethod
    def from_secret(cls, codec: Codec, d: int, secret: bytes, training: str, *, keys: AssignedKeys = "derived") -> Self:
        """Return a session whose seed follows from a secret that both sides have, and from what they agree on.

        Two sessions with one secret have different seeds if they differ in codec, d, the way of keys or the name of
        the training. Anything else that is made of the secret has nothing in common with them.

        Args:
            codec: as for the class, and so are d and keys.
            d: coordinates of the model.
            secret: at least 16 bytes that nobody else knows, such as a key that the transport exports.
            training: a name for this training. Give each its own: directions would repeat otherwise.
            keys: who has which key.

        Raises:
            InputError: the secret is too short, or as for the class.

        Example:
            >>> BareSession.from_secret(Peaks(m=7), 13_426, bytes(range(16)), "site 4, May").frame_bytes()
            9

        """
        if not isinstance(secret, bytes) or len(secret) < FEWEST_SECRET_BYTES:
            came = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
            raise KeyRangeError(f"the secret is {came}; expected at least {FEWEST_SECRET_BYTES} bytes that are random")
        codec, way = check_is_codec(codec), WAYS.index(_check_way(keys))
        agreed = header_of(codec, check_dimension(codec, d), NO_KEY) + bytes([way])
        digest = hmac.digest(secret, SECRET_DOMAIN + agreed + training.encode(), "sha256")
        return cls(codec, d, int.from_bytes(digest[:8], "little"), keys=keys)

    def key(self, round_number: int, client: int) -> Key:
        """Return the key of a client in a round: what it encodes with, and what its frame is read with.

        Args:
            round_number: from 0, as both sides count.
            client: its number. With partitioned keys its place among the clients of the round, which is its slot.

        Raises:
            InputError: there is no such round or client, or the codec has no directions left for this slot.

        """
        codec, client = self.codec_at(round_number), check_client(client)
        if self.keys == "derived":
            return Key(derive_seed(self.seed, round_number, client))
        key = check_key(Key(round_seed(self.seed, round_number), client if self.keys == "partitioned" else 0))
        codec.check(self.d, key.slot)
        return key

    def codec_at(self, round_number: int) -> Codec:
        """Return the codec of a round."""
        return self.codec.at_round(check_round(round_number))

    def frame_bytes(self, round_number: int = 0) -> int:
        """Return the length of every frame of a round. It is the same in all of them unless the codec changes."""
        return self.codec_at(round_number).bytes_per_update(self.d)

    def pack(self, update: Update, round_number: int, client: int) -> bytes:
        """Return the bare frame of a client's update in a round.

        Raises:
            CodecError: the update is of another codec or d.
            KeyRangeError: it was encoded with another key than the reader will decode it with.

        """
        codec, key = self._expected(round_number, client)
        if update.codec != codec or update.d != self.d:
            raise CodecError(
                f"the update is from {update.codec} with d = {update.d}; "
                f"round {round_number} of this session is for {codec} with d = {self.d}"
            )
        if update.key != key:
            raise KeyRangeError(
                f"the update was encoded with {update.key}, but round {round_number} of client {client} has {key}; "
                "encode with session.key(round_number, client)"
            )
        return payload_of(update)

    def unpack(self, frame: bytes | bytearray | memoryview, round_number: int, client: int) -> Update:
        """Read what the transport says is the frame of a client in a round.

        Length and content are checked. Nothing in a bare frame shows whether it is of this client, round or session.

        Raises:
            FrameLengthError: it has another length than the frames of this round.
            ContentError: it holds what the codec never writes.

        """
        codec, key = self._expected(round_number, client)
        view = memoryview(frame).cast("B")
        if len(view) != (expected := codec.bytes_per_update(self.d)):
            raise FrameLengthError(
                f"the bare frame has {len(view)} bytes where round {round_number} of {codec} makes it {expected}; "
                "both sides must use the same codec and count rounds alike"
            )
        arrays = read_arrays(view, codec.sections(self.d))
        codec.check_content(arrays, self.d)
        return Update(codec, self.d, key, arrays)

    def _expected(self, round_number: int, client: int) -> tuple[Codec, Key]:
        """What the update of a client in a round is decoded with."""
        codec, key = self.codec_at(round_number), self.key(round_number, client)
        return codec, key if codec.needs_key else NO_KEY


def _check_way(keys: str) -> AssignedKeys:
    for way in WAYS:
        if keys == way:
            return way
    raise CodecError(
        f"keys = {keys!r}: a bare frame carries no key, so both sides must know it; expected one of {', '.join(WAYS)}"
    )
