"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime as dt
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headgate.server.wire.tls import TlsFiles

LOOPBACK = x509.IPAddress(IPv4Address("127.0.0.1"))


class Authority:
    """Signs certificates, and writes all of its files to a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        certificate = self._build(self._name, self._key, []).add_extension(x509.BasicConstraints(True, None), True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, *names: x509.GeneralName, file: str = "") -> TlsFiles:
        """Write a new certificate for `names`, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._build(_name(name), key, list(names) or [LOOPBACK]).sign(self._key, hashes.SHA256())
        files = TlsFiles(self._folder / f"{file or name}.crt", self._folder / f"{file or name}.key")
        files.certificate.write_bytes(_pem(certificate))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def _build(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName]
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )
        return builder.add_extension(x509.SubjectAlternativeName(names), False) if names else builder


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
