"""Certificates as gRPC and Python's ssl take them. Servers read changed files at each handshake."""

import ssl
import tempfile
from pathlib import Path

import grpc

from headrace.chassis.certificates import Certificates, Pem, check_pair


def server_credentials(certificates: Certificates, ask_callers: bool) -> grpc.ServerCredentials:
    """For a gRPC port. A caller without a certificate of `ca` does not get through the handshake if asked for it."""
    last = certificates.current()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        pem = certificates.current()
        if pem is last:
            return None
        last = pem
        return _configuration(pem)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(last),
        changed,  # type: ignore[arg-type]  # None is for no change
        ask_callers,
    )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)


def channel_credentials(pem: Pem) -> grpc.ChannelCredentials:
    """For connections that are made with these certificates; others need a channel of their own."""
    return grpc.ssl_channel_credentials(pem.ca or None, pem.key or None, pem.certificate or None)


def server_context(certificates: Certificates, ask_callers: bool) -> ssl.SSLContext:
    """For an HTTP port, as `server_credentials`. Always the same object; what it does follows the files."""
    last, made = certificates.current(), _server_context(certificates.current(), ask_callers)

    def renew(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        """Called in each handshake, whether or not the caller names a host."""
        nonlocal last, made
        pem = certificates.current()
        if pem is not last:
            last, made = pem, _server_context(pem, ask_callers)
        connection.context = made

    outer = _server_context(last, ask_callers)
    outer.sni_callback = renew
    return outer


def _server_context(pem: Pem, ask_callers: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # who comes again shows a certificate again
    context.options |= ssl.OP_NO_TICKET
    if ask_callers:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=pem.ca.decode("ascii"))
    _load_own(context, pem)
    return context


def client_context(pem: Pem) -> ssl.SSLContext:
    """For HTTP requests to hosts that are known by their name."""
    context = ssl.create_default_context(cadata=pem.ca.decode("ascii") or None)
    if pem.certificate:
        _load_own(context, pem)
    return context


def _load_own(context: ssl.SSLContext, pem: Pem) -> None:
    """ssl reads these from files only: one that nobody else may read, and only for as long as that takes."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_bytes(pem.certificate)
        key.write_bytes(pem.key)
        check_pair(context, certificate, key)
