"""Channels between services: one set of options for both sides."""

from typing import Any

import grpc

from headrace.chassis.config import TransportSettings

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
        ("grpc.keepalive_time_ms", transport.keepalive_ms),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),  # a port in use must fail, not share
    ]


def open_channel(address: str, transport: TransportSettings) -> grpc.aio.Channel:
    """A channel between services that reconnects quickly. Of several addresses the first that answers is used, and
    once it is lost, again the first."""
    backoff = [
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.min_reconnect_backoff_ms", 100),
    ]
    target = f"ipv4:{address}" if "," in address else address
    return grpc.aio.insecure_channel(target, options=[*channel_options(transport), *backoff])
