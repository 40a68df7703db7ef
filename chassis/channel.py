"""Channels between services: one set of options for both sides."""

from typing import Any

import grpc

from headrace.chassis.certificates import Certificates, Pem
from headrace.chassis.config import TlsSettings, TransportSettings
from headrace.chassis.credentials import channel_credentials
from headrace.chassis.renewing_channel import RenewingChannel
from headrace.core.role import Role

PING_TIMEOUT_MS = 10_000
"""A peer that has not answered a ping for so long is lost: its process may be paused, or its machine gone."""


def channel_options(transport: TransportSettings) -> list[tuple[str, Any]]:
    """Options for servers and channels alike.

    Keepalive pings on silent long streams die with too_many_pings unless the server allows them; the two keys that
    allow them are min_ping_interval_without_data_ms and max_ping_strikes. How long a ping may stay unanswered is
    bounded by ping_timeout_ms, a minute unless it is set, whatever keepalive_timeout_ms says.
    """
    return [
        ("grpc.max_send_message_length", transport.max_message_bytes),
        ("grpc.max_receive_message_length", transport.max_message_bytes),
        ("grpc.max_metadata_size", transport.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", transport.max_metadata_bytes),  # in between gRPC refuses at random
        ("grpc.max_concurrent_streams", transport.max_streams),
        ("grpc.keepalive_time_ms", transport.keepalive_ms),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),  # a port in use must fail, not share
    ]


def open_channel(address: str, transport: TransportSettings, peer: Role | None = None) -> grpc.aio.Channel:
    """A channel between services that reconnects quickly. Of several addresses the first that answers is used, and
    once it is lost, again the first.

    With TLS the server must prove that it is a `peer`, wherever it is; None: that it is the host of the address.
    Raises ConfigError where the settings name certificates that are not to be had.
    """
    backoff = [
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.min_reconnect_backoff_ms", 100),
    ]
    target = f"ipv4:{address}" if "," in address else address
    options = [*channel_options(transport), *backoff]
    if transport.tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    options += peer_name(transport.tls, peer)

    def open_with(pem: Pem) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(target, channel_credentials(pem), options=options)

    return RenewingChannel(Certificates(transport.tls, server=False), open_with)


def open_blocking_channel(address: str, transport: TransportSettings, peer: Role | None = None) -> grpc.Channel:
    """As `open_channel`, for programs without asyncio. It keeps the certificates that it was opened with."""
    options = channel_options(transport)
    if transport.tls is None:
        return grpc.insecure_channel(address, options=options)
    credentials = channel_credentials(Certificates(transport.tls, server=False).current())
    return grpc.secure_channel(address, credentials, options=[*options, *peer_name(transport.tls, peer)])


def peer_name(tls: TlsSettings, peer: Role | None) -> list[tuple[str, Any]]:
    """The option that says which name a server's certificate must have, if not that of its host."""
    return [("grpc.ssl_target_name_override", f"{peer}.{tls.domain}")] if peer and tls.domain else []
