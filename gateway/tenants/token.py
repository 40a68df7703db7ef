"""Tokens (JWT, RFC 7519) beside API keys: a signature of the issuer's, its claims, and the tenant that they name.

Algorithms are the settings', never the token's choice: no `none`, no shared secrets. Verified by the library PyJWT.
"""

import re
import time
from collections.abc import Mapping
from typing import Any

import jwt

from headrace.chassis.config import TokenSettings
from headrace.gateway.codec import TENANT_NAME
from headrace.gateway.tenants.jwks import KeySet
from headrace.gateway.tenants.replay import Replays
from headrace.gateway.tenants.wording import refused

MAX_CHARS = 8_192
_TENANT = re.compile(TENANT_NAME)

_FAULTS: list[tuple[type[jwt.PyJWTError], str]] = [
    (jwt.ExpiredSignatureError, "this token has expired"),
    (jwt.ImmatureSignatureError, "this token is not valid yet"),
    (jwt.InvalidIssuedAtError, "this token is not valid yet"),
    (jwt.InvalidAudienceError, "this token is for another audience"),
    (jwt.InvalidIssuerError, "this token is of another issuer"),
    (jwt.InvalidAlgorithmError, "this token is signed by an algorithm that is not allowed"),
    (jwt.MissingRequiredClaimError, "this token lacks a claim"),
    (jwt.InvalidSignatureError, "this token's signature is wrong"),
]
"""What a caller is told. Never what the library says, which may quote the token."""


class Tokens:
    """What a gateway accepts. `keys` follow their source by themselves."""

    def __init__(self, settings: TokenSettings, keys: KeySet) -> None:
        self._settings = settings
        self._keys = keys
        self._replays = Replays(settings.max_remembered) if settings.once else None

    def tenant(self, token: str) -> str:
        """The tenant whose token it is. Raises Unauthenticated; Unavailable while the issuer's keys are not here."""
        if len(token) > MAX_CHARS:
            raise refused("this token is too long", limit=f"{MAX_CHARS} characters")
        claims = self._claims(token)
        tenant = claims.get(self._settings.tenant_claim)
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            name = self._settings.tenant_claim
            raise refused(f"this token's {name} is no plain tenant name", limit="1..64 of A-Z a-z 0-9 . _ -")
        if self._replays:
            self._replays.spend(claims.get("jti"), float(claims["exp"]) + self._settings.leeway_s, time.time())
        return tenant

    def _claims(self, token: str) -> Mapping[str, Any]:
        settings = self._settings
        try:
            key = self._keys.key(jwt.get_unverified_header(token).get("kid"))
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=settings.algorithms,
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud", *(["jti"] if settings.once else [])]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            said = next((text for kind, text in _FAULTS if isinstance(error, kind)), "this is no sound token")
            raise refused(said) from None
        if settings.max_lifetime_s and float(claims["exp"]) - time.time() > settings.max_lifetime_s + settings.leeway_s:
            raise refused("this token is valid for too long", limit=f"{settings.max_lifetime_s:g} s")
        return claims
