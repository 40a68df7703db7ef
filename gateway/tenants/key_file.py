"""The file of tenants and their keys: read, checked whole, and looked up by a key's digest. No effects but reading.

[tenant.mills]
key_sha256 = ["..."]
requests_per_minute = 600
classes = ["normal", "batch"]
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.chassis.config import TenantQuota
from headrace.core.errors import ConfigError
from headrace.gateway.codec import TENANT_NAME
from headrace.gateway.tenants.caller import Caller

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=f"^(?:{TENANT_NAME})$")]
Limit = Annotated[int, Field(ge=0)]


class _Tenant(BaseModel):
    """A limit that is left out is that of the settings' tenants.default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key_sha256: tuple[Digest, ...] = Field(default=(), min_length=1)
    max_requests: Limit | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    classes: tuple[Literal["realtime", "normal", "batch"], ...] | None = None
    models: tuple[str, ...] | None = None

    def caller(self, name: str, default: TenantQuota) -> Caller:
        own = self.model_dump(include=set(TenantQuota.model_fields), exclude_none=True)
        return Caller(name, default.model_copy(update=own), self.classes, self.models)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: dict[Name, _Tenant] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownCallers:
    """What the file says, by the digest of a key and by the tenant's name."""

    by_digest: Mapping[str, Caller]
    by_name: Mapping[str, Caller]


def read_callers(path: Path, default: TenantQuota, *, keyless: bool = False) -> KnownCallers:
    """With `keyless` a tenant may have no key. Raises ConfigError that lists every fault, and never what stands in
    the file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    faults = [f"two tenants share a key: {first} and {second}" for first, second in _shared(data)]
    if not keyless:
        faults += [f"tenant.{name}.key_sha256: Field required" for name in _without_keys(data)]
    tenants: Mapping[str, _Tenant] = {}
    try:
        tenants = _File.model_validate(data).tenant
    except ValidationError as error:
        faults += [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    callers = {name: tenant.caller(name, default) for name, tenant in tenants.items()}
    return KnownCallers(
        {digest: callers[name] for name, tenant in tenants.items() for digest in tenant.key_sha256}, callers
    )


def _without_keys(data: Mapping[str, Any]) -> Iterator[str]:
    tenants = data.get("tenant")
    for name, tenant in tenants.items() if isinstance(tenants, dict) else ():
        if isinstance(tenant, dict) and "key_sha256" not in tenant:
            yield name


def _shared(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of tenants with a digest in common; what is no table or no list is validation's to name."""
    owners: dict[str, str] = {}
    tenants = data.get("tenant")
    for name, tenant in tenants.items() if isinstance(tenants, dict) else ():
        digests = tenant.get("key_sha256") if isinstance(tenant, dict) else None
        for digest in digests if isinstance(digests, list) else ():
            if isinstance(digest, str) and owners.setdefault(digest, name) != name:
                yield owners[digest], name
