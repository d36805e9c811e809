"""Certificates for tests, with their own authority."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOCAL = x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))


class Authority:
    """Signs certificates, and writes them to a folder; its own is in `path`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name, self._key = folder, _name(name), ec.generate_private_key(ec.SECP256R1())
        certificate = self._built(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
        self.path = _written(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def signed(self, name: str, *names: x509.GeneralName, file: str = "") -> tuple[Path, Path]:
        """Return the files of a new certificate, by default for this machine, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._built(_name(name), key.public_key(), x509.SubjectAlternativeName(names or LOCAL))
        raw = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return (
            _written(self._folder / f"{file or name}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            _written(self._folder / f"{file or name}.key", raw),
        )

    def _built(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        return builder.add_extension(extension, critical=True).sign(self._key, hashes.SHA256())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _written(path: Path, data: bytes) -> Path:
    unfinished = path.with_suffix(path.suffix + ".new")
    unfinished.write_bytes(data)
    return unfinished.replace(path)
