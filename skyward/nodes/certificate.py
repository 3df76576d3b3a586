"""Certificates that a client makes for one pool: self-signed, known as a whole to the other side, and never reused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from skyward.errors import ConfigError
from skyward.wire.tls import Identity

_BACK = timedelta(days=1)  # clocks differ
_VALID = timedelta(days=3650)  # the pool may last; the keys are deleted with it


def new_certificate(name: str, *, user: str, extra: str) -> tuple[str, str]:
    """A self-signed certificate, and its private key; both PEM.

    Args:
        name: its common name.
        user: what makes it, for the error.
        extra: the extra of skyward that brings the library.

    Raises:
        ConfigError: the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            f"{user} makes certificates for the connections to its nodes, which takes the package cryptography: "
            f"`pip install 'skyward[{extra}]'`."
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACK)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def identities(provider: str, pool: str, count: int) -> tuple[list[Identity], list[Identity]]:
    """The client's identity towards each of so many programs that wait for it, and each program's, in the same order.

    The client has one certificate, and each program its own, so that one cannot pose as another.

    Args:
        provider: name of the provider's class, for errors.
        pool: identifier of the pool.
        count: of the programs.

    Raises:
        ConfigError: the package cryptography is not installed.
    """

    def pair(name: str) -> tuple[str, str]:
        return new_certificate(f"skyward {pool} {name}", user=f"sky.{provider}", extra=provider.lower())

    client, client_key = pair("client")
    theirs = [Identity(*pair(f"task {number}"), peer=client) for number in range(1, count + 1)]
    return [Identity(client, client_key, peer=each.certificate) for each in theirs], theirs
