"""The identities of a pool: its client's and one for each task, made for this pool alone and known to nobody else.

Certificates, because the TLS of Python's standard library takes a key that both sides know only from 3.13 on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from skyward.errors import ConfigError
from skyward.wire.tls import Identity

_BACK = timedelta(days=1)  # clocks differ
_VALID = timedelta(days=3650)  # they are forgotten with the pool, which no date may end


def identities(pool: str, tasks: int) -> tuple[list[Identity], list[Identity]]:
    """What the client needs for each task of a service, and what each task needs, in the order of their slots.

    The client has one certificate, each task has its own: what is found out of one task says nothing of another.

    Raises:
        ConfigError: the library that makes certificates is not installed.
    """
    client, client_key = _pair(f"skyward {pool} client")
    theirs = [Identity(*_pair(f"skyward {pool} task {slot + 1}"), peer=client) for slot in range(tasks)]
    return [Identity(client, client_key, peer=task.certificate) for task in theirs], theirs


def _pair(name: str) -> tuple[str, str]:
    """A certificate that vouches for itself, and its private key; both PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            "sky.Swarm makes certificates for the connections to its nodes, which takes the package cryptography: "
            "`pip install 'skyward[swarm]'`."
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
