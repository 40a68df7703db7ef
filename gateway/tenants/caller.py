"""One call's caller: a tenant, what it may use, and how much of it."""

from collections.abc import Collection
from dataclasses import dataclass

from headrace.chassis.config import TenantQuota
from headrace.core.errors import PermissionDenied
from headrace.core.request import QosClass


@dataclass(frozen=True, slots=True)
class Caller:
    """`classes` (lower case) and `models` None: all of them."""

    tenant: str
    quota: TenantQuota
    classes: Collection[str] | None = None
    models: Collection[str] | None = None

    def check(self, model: str, qos: QosClass) -> None:
        """Raises PermissionDenied that names the field and what is allowed."""
        if self.classes is not None and (name := qos.name.lower()) not in self.classes:
            raise PermissionDenied(
                f"this key may not ask for class {name}", field="qos_class", limit=", ".join(sorted(self.classes))
            )
        if not self.may_see(model):
            raise PermissionDenied(
                f"this key may not use model {model!r}", field="model", limit=", ".join(sorted(self.models or ()))
            )

    def may_see(self, model: str) -> bool:
        return self.models is None or model in self.models
