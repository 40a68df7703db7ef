"""Which roles a verified certificate gives its owner: by the names in it, never by what the caller says."""

import re
import ssl
from collections.abc import Iterable
from typing import Any

import grpc

from headrace.core.role import Role

_ROLES = {role.value: role for role in Role}
_SPIFFE = r"spiffe://{}(?:/[A-Za-z0-9._-]+)*/([a-z]+)"


def roles(dns: Iterable[str], uris: Iterable[str], domain: str) -> frozenset[Role]:
    """Of the names ROLE.DOMAIN and the SPIFFE ids spiffe://DOMAIN/.../ROLE. Nothing for any other name.

    Ids after https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE-ID.md, in their canonical form only.
    """
    named = [name.lower().removesuffix(f".{domain}") for name in dns if name.lower().endswith(f".{domain}")]
    named += [found[1] for uri in uris if (found := re.fullmatch(_SPIFFE.format(re.escape(domain)), uri))]
    return frozenset(_ROLES[name] for name in named if name in _ROLES)


def roles_of_call(context: "grpc.aio.ServicerContext[Any, Any]", domain: str) -> frozenset[Role] | None:
    """Of a call's connection; None where it showed no certificate."""
    found = context.auth_context()
    if not found.get("x509_pem_cert"):
        return None
    dns, uris = ([name.decode("utf-8", "replace") for name in found.get(kind, ())] for kind in ("peer_dns", "peer_uri"))
    return roles(dns, uris, domain)


def roles_of_connection(connection: ssl.SSLObject | ssl.SSLSocket, domain: str) -> frozenset[Role] | None:
    """As `roles_of_call`, of an HTTP connection."""
    certificate = connection.getpeercert()
    if not certificate:
        return None
    names: Any = certificate.get("subjectAltName", ())
    dns, uris = ([name for found, name in names if found == kind] for kind in ("DNS", "URI"))
    return roles(dns, uris, domain)
