"""All cryptography of the secure sum, and the only place that knows the package that has it."""

import hashlib
import os

from fedmpdd.errors import ContentError, MissingDependencyError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError as missing:
    raise MissingDependencyError(
        f"secure sums need the package {missing.name}, which is missing; in the checkout, pip install '.[privacy]'"
    ) from None

KEY_BYTES = 32  # of secret and public keys, seeds and digests alike
NONCE_BYTES = 12
TAG_BYTES = 16
SIGNATURE_BYTES = 64
_FIELD = 2**255 - 19  # of X25519: coordinates are below it
_LABEL = b"fedmpdd secure sum 1: "


def new_secret() -> bytes:
    """Return a fresh secret key or seed, from the operating system."""
    return os.urandom(KEY_BYTES)


def public_of(secret: bytes) -> bytes:
    """Return the X25519 public key of a secret key."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public: bytes) -> bytes:
    """Return what two sides agree on, each from its own secret key and the other's public one (X25519)."""
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of small order: what is agreed on would be known to everybody
        raise ContentError(f"{public.hex()} is a public key that hides nothing; drop the client it is from") from None


def check_canonical(public: bytes) -> None:
    """Raise ContentError unless a public key is written in the one way that it should be.

    X25519 ignores the highest bit and takes a coordinate modulo 2^255 − 19, so that one key has several spellings:
    who compares keys as bytes takes them for different ones.
    """
    if int.from_bytes(public, "little") >= _FIELD:
        raise ContentError(
            f"{public.hex()} is another spelling of a public key; expected a number below 2^255 − 19, the lowest byte "
            "first: drop the client it is from"
        )


def verify_key_of(secret: bytes) -> bytes:
    """Return the Ed25519 verify key of a signing key."""
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, text: bytes) -> bytes:
    """Return the Ed25519 signature of a text, which says itself what it is for."""
    return Ed25519PrivateKey.from_private_bytes(secret).sign(_LABEL + text)


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether a signature is by the owner of a verify key, and of this text."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _LABEL + text)
    except (InvalidSignature, ValueError):  # ValueError: the verify key is no point of the curve
        return False
    return True


def digest(*parts: bytes) -> bytes:
    """Return SHA-256 of parts of known lengths."""
    return hashlib.sha256(_LABEL + b"".join(parts)).digest()


def derive(secret: bytes, purpose: bytes, *context: bytes) -> bytes:
    """Return a key for one purpose in one context (HKDF-SHA256)."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=_LABEL + purpose + b"".join(context)).derive(secret)


def keystream(key: bytes, count: int) -> bytes:
    """Return so many bytes of the ChaCha20 stream of a key that makes only this one: block 0 on, nonce zero."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(count))


def seal(key: bytes, plaintext: bytes, context: bytes) -> bytes:
    """Encrypt (ChaCha20-Poly1305), so that it opens in this context alone.

    The nonce is random, though a key should seal once: a client whose memory was set back may seal again.
    """
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes | None:
    """Decrypt what `seal` wrote, None where it was written with another key, for another context, or was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except InvalidTag:
        return None
