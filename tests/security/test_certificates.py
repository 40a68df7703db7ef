"""Files of certificates: what is asked of them, and that only what fits together replaces what was there."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.chassis import certificates
from headrace.chassis.certificates import Certificates, read
from headrace.chassis.config import TlsSettings
from headrace.cli.authority import Authority
from headrace.core.errors import ConfigError
from headrace.core.role import Role

ENCRYPTED = b"""-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiJ0P4v5f3F0QICCAAw
-----END ENCRYPTED PRIVATE KEY-----
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_S", 0.0)


def test_what_a_server_misses_is_named(tmp_path: Path) -> None:
    for settings, missing in (
        (TlsSettings(), "ca, certificate, key"),
        (TlsSettings(ca=tmp_path), "certificate, key"),
        (TlsSettings(certificate=tmp_path), "certificate and key"),
        (TlsSettings(dir=tmp_path, domain=""), "transport.tls.domain"),
        (TlsSettings(dir=tmp_path), "tls.crt"),
    ):
        (tmp_path / "ca.crt").write_bytes(Authority("a", 1).pem)
        with pytest.raises(ConfigError, match=missing):
            Certificates(settings, server=True)


def test_a_channel_needs_none_of_its_own(tmp_path: Path) -> None:
    assert Certificates(TlsSettings(), server=False).current().ca == b""
    (tmp_path / "ca.crt").write_bytes(Authority("a", 1).pem)
    pem = Certificates(TlsSettings(dir=tmp_path), server=False).current()
    assert (bool(pem.ca), pem.certificate, pem.key) == (True, b"", b"")


def test_a_roles_files_go_before_those_of_the_only_one(folder: Path, write: Any, authority: Authority) -> None:
    own = Certificates(TlsSettings(dir=folder, role=Role.GATEWAY), server=True).current()
    write(folder, "tls", authority, Role.ADMIN)
    assert Certificates(TlsSettings(dir=folder, role=Role.GATEWAY), server=True).current() == own
    (folder / "gateway.crt").unlink()
    only = Certificates(TlsSettings(dir=folder, role=Role.GATEWAY), server=True).current()
    assert only.certificate == (folder / "tls.crt").read_bytes()


@pytest.mark.parametrize(
    ("file", "content", "field"),
    [
        ("ca.crt", b"no PEM", "transport.tls.ca"),
        ("ca.crt", b"\xff\xfe", "transport.tls.ca"),
        ("client.crt", b"no PEM", "transport.tls.certificate"),
        ("client.key", b"", "transport.tls.certificate"),
        ("client.key", ENCRYPTED, "transport.tls.certificate"),
        ("client.key", None, "transport.tls.key"),
    ],
)
def test_unsound_files_are_named_and_not_shown(folder: Path, file: str, content: bytes | None, field: str) -> None:
    secret = (folder / "client.key").read_text().splitlines()[1]
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        Certificates(TlsSettings(dir=folder), server=True)
    assert refused.value.field == field
    assert str(folder / file) in refused.value.message
    assert secret not in refused.value.message


def test_half_a_rotation_changes_nothing(
    folder: Path, write: Any, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    held = Certificates(TlsSettings(dir=folder), server=True)
    before = held.current()
    write(folder, "next", authority, Role.CLIENT)
    with caplog.at_level(logging.ERROR):
        os.replace(folder / "next.key", folder / "client.key")
        assert held.current() is before
    assert "stay in force" in caplog.text
    os.replace(folder / "next.crt", folder / "client.crt")
    after = held.current()
    assert after != before
    assert after.certificate == (folder / "client.crt").read_bytes()
    assert held.current() is after


def test_a_touched_file_is_no_change(folder: Path) -> None:
    held = Certificates(TlsSettings(dir=folder), server=True)
    before = held.current()
    os.utime(folder / "ca.crt", ns=(1, 1))
    assert held.current() is before


def test_keys_do_not_show(folder: Path) -> None:
    pem = read({"ca": folder / "ca.crt", "certificate": folder / "client.crt", "key": folder / "client.key"})
    assert (folder / "client.key").read_text().splitlines()[1] not in repr(pem)
