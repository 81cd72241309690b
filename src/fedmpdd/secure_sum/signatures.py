"""Who is who in a secure sum: signatures, for a server that may lie about keys and about who is left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedmpdd.errors import InputError, SecureSumError
from fedmpdd.secure_sum import primitives
from fedmpdd.secure_sum.primitives import KEY_BYTES
from fedmpdd.secure_sum.terms import Terms, client_ids


@dataclass(frozen=True)
class Roster:
    """The Ed25519 verify keys of all clients of a round, in the order of their numbers.

    It must come from somebody whom the clients trust with it, and never from the server: one that may name the keys may
    be every other client. All clients of a round must have the same roster; those with another one verify nothing.

    Example:
        >>> secrets = [primitives.new_secret() for _ in range(4)]
        >>> roster = Roster.of([primitives.verify_key_of(secret) for secret in secrets])
    """

    verify_keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        for client, key in enumerate(self.verify_keys):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise InputError(f"the verify key of client {client} is {key!r}: expected {KEY_BYTES} bytes (Ed25519)")
        if len(set(self.verify_keys)) != len(self.verify_keys):
            raise InputError("two clients of the roster have one verify key: every client makes its own")

    @classmethod
    def of(cls, verify_keys: Mapping[int, bytes] | Sequence[bytes]) -> "Roster":
        """Return the roster of verify keys by number, or in their order."""
        if not isinstance(verify_keys, Mapping):
            return cls(tuple(verify_keys))
        if sorted(verify_keys) != list(range(len(verify_keys))):
            raise InputError(f"the roster names clients {sorted(verify_keys)[:8]} …: expected 0, 1, 2, …, all of them")
        return cls(tuple(verify_keys[client] for client in range(len(verify_keys))))

    @cached_property
    def digest(self) -> bytes:
        """Thirty-two bytes that stand for the roster, and are part of everything that is signed."""
        return primitives.digest(b"roster", *self.verify_keys)

    def check_size(self, terms: Terms) -> None:
        """Raise InputError unless it is a roster of as many clients as the terms name."""
        if len(self.verify_keys) != terms.clients:
            raise InputError(
                f"the roster is of {len(self.verify_keys)} clients and the round of {terms.clients}: give every number "
                "of the round its verify key"
            )

    def is_signed(self, signature: bytes, purpose: bytes, terms: Terms, client: int, *content: bytes) -> bool:
        """Whether this client signed this content, for this purpose, in this round."""
        text = self._text(purpose, terms, client, *content)
        return primitives.is_signed(self.verify_keys[client], signature, text)

    def _text(self, purpose: bytes, terms: Terms, client: int, *content: bytes) -> bytes:
        """What is signed. The digests hold run, round and all else that is agreed on: no other round has them."""
        return b"".join([purpose, terms.digest, self.digest, client_ids(client, client), *content])


@dataclass(frozen=True)
class Identity:
    """A client's own signing key, and the roster that names all clients' verify keys.

    A client that is given one insists on signatures: it refuses terms without them.

    signing_key: 32 secret bytes (an Ed25519 seed), the same for years. It is never part of `SecureClient.state()`.
    """

    signing_key: bytes = field(repr=False)
    roster: Roster

    def check(self, terms: Terms, client: int) -> None:
        """Raise unless terms have signatures, and the roster knows this client by its key."""
        if not terms.signed:
            raise SecureSumError(
                "the terms ask for no signatures, and this client insists on them: nothing is told; open the round "
                "with Terms(…, signed=True)"
            )
        self.roster.check_size(terms)
        if primitives.verify_key_of(self.signing_key) != self.roster.verify_keys[client]:
            raise InputError(
                f"the roster has another verify key for client {client} than that of the signing key: take the number "
                "that the roster has for this client, or the right key"
            )

    def sign(self, purpose: bytes, terms: Terms, client: int, *content: bytes) -> bytes:
        """Return this client's signature of some content, for one purpose, in one round."""
        return primitives.sign(self.signing_key, self.roster._text(purpose, terms, client, *content))
