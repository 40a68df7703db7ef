"""Settings of all services: one TOML file, HEADRACE_* variables on top, every fault reported at once.

HEADRACE_GATEWAY__LISTEN=127.0.0.1:9000 sets [gateway] listen. Each service reads its own section and the shared ones.
"""

import os
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from headrace.core.errors import ConfigError
from headrace.core.precision import DEFAULT_RULES, parse_rules
from headrace.core.role import Role
from headrace.core.screening import ScreenPolicy


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{value!r} is no HOST:PORT")
    return value


def _addresses(value: str) -> str:
    parts = [_address(part.strip()) for part in value.split(",")]
    if len(parts) > 1 and not all(_is_ipv4(part.rpartition(":")[0]) for part in parts):
        raise ValueError(f"{value!r}: several addresses are numeric IPv4 ones; a name may stand for several by itself")
    return ",".join(parts)


def _is_ipv4(host: str) -> bool:
    try:
        return ip_address(host).version == 4
    except ValueError:
        return False


Address = Annotated[str, AfterValidator(_address)]
"""HOST:PORT; port 0 lets the system choose (listen addresses only)."""


Addresses = Annotated[str, AfterValidator(_addresses)]
"""HOST:PORT, or several with commas between: the first that answers is used."""


def _precision_rules(value: str) -> str:
    parse_rules(value)
    return value


def _names(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value  # as one writes it in a variable


def default_home() -> Path:
    """The folder of converted models: $XDG_CACHE_HOME/headrace, else ~/.cache/headrace."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


OwnOrPrecision = Literal["own", "fp32", "bf16", "int8"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsSettings(_Section):
    """Certificates, as PEM. Those of a folder may be named one by one instead.

    A server shows its own and asks its callers for one of `ca`. A channel trusts servers of `ca`, without one those
    of the system's authorities, and shows its own where there is one.
    """

    dir: Path | None = Field(
        None, description="folder of ca.crt, and ROLE.crt and ROLE.key of each role, or tls.crt and tls.key of one"
    )
    ca: Path | None = Field(None, description="authorities that sign the others' certificates; default: DIR/ca.crt")
    certificate: Path | None = Field(None, description="this process's; default: DIR/ROLE.crt, else DIR/tls.crt")
    key: Path | None = Field(None, description="the certificate's; default: DIR/ROLE.key, else DIR/tls.key")
    role: Role = Field(Role.CLIENT, description="whose certificate this is; a service's is always its own")
    domain: str = Field(
        "headrace",
        pattern=r"^([a-z0-9-]+(\.[a-z0-9-]+)*)?$",
        max_length=200,
        description="certificates name a role ROLE.DOMAIN or spiffe://DOMAIN/.../ROLE; '': a server is known by its "
        "host's name, and callers have no roles",
    )


class TransportSettings(_Section):
    """Both sides of every channel read the same bounds."""

    max_message_bytes: int = Field(4 * 2**20, ge=2**10, le=2**30)
    max_metadata_bytes: int = Field(
        16 * 2**10, ge=4 * 2**10, le=2**20, description="of a call, both ways; over HTTP of its headers"
    )
    max_streams: int = Field(
        10_000, ge=1, le=2**30, description="calls at once on one connection; more wait, or are UNAVAILABLE"
    )
    keepalive_ms: int = Field(20_000, ge=1_000)
    drain_s: float = Field(30.0, gt=0, description="longest wait for running work when leaving")
    tls: TlsSettings | None = Field(None, description="none: plain text, for loopback only")

    def of(self, role: Role) -> Self:
        """The same for a process of that role."""
        return self.model_copy(update={"tls": self.tls and self.tls.model_copy(update={"role": role})})


class ModelsSettings(_Section):
    home: Path = Field(default_factory=default_home)


class TelemetrySettings(_Section):
    """Spans go by OTLP/gRPC to `endpoint`, else to OTEL_EXPORTER_OTLP_ENDPOINT, else nowhere."""

    endpoint: str = ""
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="share of requests traced, of those whose caller is silent"
    )
    keep_slower_ms: int = Field(
        2_000, ge=0, description="of the others, the gateway's spans are kept where they fail or take so long"
    )
    metrics_listen: Address | Literal[""] = Field(
        "", description="HOST:PORT of GET /metrics; under headrace up the first service's, the others have the next"
    )
    metrics_endpoint: str = Field("", description="where metrics go by OTLP/gRPC too, as http://HOST:4317")
    metrics_interval_s: float = Field(15.0, gt=0, le=3_600, description="how often")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    record_prompts: bool = Field(False, description="the beginning of each prompt, in its call's span")


class GatewaySettings(_Section):
    listen: Address = "127.0.0.1:8470"
    http_listen: Address | Literal[""] = Field("", description="HOST:PORT for OpenAI's HTTP clients; '': none")
    client_certificates: bool = Field(
        True, description="with TLS callers show one of role client; false: API keys or tokens alone say who calls"
    )
    scheduler: Addresses = "127.0.0.1:8471"
    preprocess: str = Field("inline", description="inline, or the HOST:PORT of a preprocess service")
    max_requests: int = Field(1024, ge=1)
    max_queued_tokens: int = Field(4_000_000, ge=1, description="prompt and answer tokens admitted at once")
    max_queued_bytes: int = Field(256 * 2**20, ge=1, description="request bytes admitted at once")
    max_buffered_frames: int = Field(256, ge=1, description="frames kept for a slow reader before they are merged")
    max_failovers: int = Field(3, ge=0, description="how often a request goes on elsewhere after its executor was lost")
    longest_unread_s: float = Field(30.0, gt=0, description="a reader that takes nothing for so long is cut off")
    tokenizer_threads: int = Field(2, ge=1, le=64)


class SchedulerSettings(_Section):
    listen: Address = "127.0.0.1:8471"
    max_waiting_requests: int = Field(10_000, ge=1, description="of each class")
    max_waiting_tokens: int = Field(20_000_000, ge=1, description="of each class")
    lease_ms: int = Field(3_000, ge=100)
    grace_ms: int = Field(3_000, ge=0, description="after its start requests wait so long for executors to enlist")
    batch_tokens: int = Field(16_384, ge=1, description="most prompt tokens of one batch of several requests")
    order: str = Field("qos", pattern="^(qos|strict|fcfs)$", description="who goes first; the last two to compare with")
    realtime_wait_s: float = Field(2.0, ge=0, description="then the oldest goes first, not the shortest")
    longest_wait_s: float = Field(60.0, ge=0, description="then normal and batch go out of turn")
    batch_share: float = Field(0.5, ge=0.01, le=0.99, description="of batch beside normal, in tokens")
    batch_floor: float = Field(0.05, ge=0.01, le=0.99, description="what its share falls to at full load")
    quota_load: float = Field(0.7, ge=0, le=0.99, description="the load from which it falls")
    max_displacements: int = Field(2, ge=0, description="how often a request may make room for realtime; 0: never")
    leadership: str = Field(
        "",
        pattern="^(|file:.+|rediss?://.+|unix://.+)$",
        description="the lease by which one of several schedulers leads: file:PATH or redis://...; empty: there is one",
    )
    leadership_ms: int = Field(3_000, ge=200, le=600_000, description="how long a leader may go without renewing it")
    window_ms: float = Field(50.0, ge=0, le=60_000, description="longest that a padded batch waits for a late device")
    buckets: str = Field(
        "adaptive", pattern="^(adaptive|fixed32|power_of_two)$", description="how a padded model's lengths are grouped"
    )
    precision_rules: Annotated[str, AfterValidator(_precision_rules)] = Field(
        DEFAULT_RULES,
        max_length=256,
        description="what serves requests without a wish: [model:][class][>tokens]=precision[|precision...], the first "
        "that fits; off: whatever is free",
    )


class ExecutorSettings(_Section):
    listen: Address = "127.0.0.1:8472"
    advertise: str = Field("", description="HOST:PORT that gateways reach it by; default: listen")
    scheduler: Addresses = "127.0.0.1:8471"
    models: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(("smollm2",), min_length=1)
    precision: Annotated[tuple[OwnOrPrecision, ...], BeforeValidator(_names)] = Field(
        ("own",),
        min_length=1,
        description="fp32, bf16, int8 or the model's own; under headrace up one executor for each",
    )
    kv_precision: str = Field(
        "auto",
        pattern="^(auto|bf16|u8)$",
        description="auto: as exact as what is computed, bf16 or fp32; u8: half of bf16's memory, not exact",
    )
    engine: str = Field("openvino", pattern="^(openvino|torch|reference)$")
    resident_experts: int = Field(
        0, ge=0, description="of a mixture's layer so many experts have a place at once, by engine torch; 0: all"
    )
    reference_step_ms: float = Field(0.0, ge=0, description="how long a step of the reference engine takes")
    reference_row_ms: float = Field(0.0, ge=0, description="and how much longer with each row, as copies one by one do")
    threads: int = Field(0, ge=0, description="0: all processors that the process may use")
    num_slots: int = Field(0, ge=0, le=4096, description="0: as many as suit the machine; see headrace hardware")
    kv_bytes: int = Field(4 * 2**30, ge=2**20)
    step_tokens: int = Field(
        0,
        ge=0,
        description="most tokens in one step: decodes first, then prefill chunks; 0: what suits the machine",
    )
    realtime_inter_token_ms: float = Field(
        100.0, ge=0, description="prefill chunks shrink so that running realtime streams keep this pace; 0: they do not"
    )
    normal_inter_token_ms: float = Field(200.0, ge=0, description="the same for normal streams; batch has no pace")
    pieces_per_s: int = Field(
        0,
        ge=0,
        description="most pieces that all streams send a second before each gathers tokens, for 0.4 s at most; realtime"
        " streams and the first eight never do; 0: what suits the machine",
    )
    exact: bool = Field(True, description="answers do not depend, bit for bit, on what runs beside them")
    speculation: int = Field(
        4, ge=0, le=7, description="most tokens of an answer that are guessed ahead while few answers run; 0: none"
    )
    prefix_cache: bool = Field(True, description="prompts that begin alike are computed once")
    cache_answers: bool = Field(False, description="also answers' tokens: faster next turns, not bit for bit exact")
    cache_scope: str = Field("shared", pattern="^(shared|tenant)$", description="who shares the prefix cache")
    idle_cache_bytes: int = Field(2**30, ge=0, description="how much the prefix cache keeps while there is no work")


AUTO_ENCODER = "auto"


class EncoderSettings(_Section):
    """The executor of an encoder: a process of its own. With `model` empty there is none."""

    model: str = Field(
        AUTO_ENCODER, description="the encoder to serve; auto: minilm under headrace up, where installed"
    )
    listen: Address = "127.0.0.1:8474"
    advertise: str = Field("", description="HOST:PORT that gateways reach it by; default: listen")
    scheduler: Addresses = "127.0.0.1:8471"
    precision: str = Field("auto", pattern="^(auto|fp32|bf16|int8)$", description="auto: bf16 where the CPU has it")
    threads: int = Field(0, ge=0, description="0: all processors that the process may use")
    batch_rows: int = Field(0, ge=0, le=256, description="most rows of a forward; 0: what suits the machine")
    packing: bool = Field(False, description="several texts share a row, where the engine can keep them apart")
    batches_ahead: int = Field(2, ge=1, le=8, description="batches placed here at once, so that one always waits")
    straggler_ms: float = Field(5.0, ge=0, le=1_000, description="longest wait for a batch's last members")


class PreprocessSettings(_Section):
    listen: Address = "127.0.0.1:8473"
    threads: int = Field(2, ge=1, le=64)


class ScreenRule(_Section):
    """A policy for one tenant, one class, or one class of a tenant; what is left out is any."""

    tenant: str = ""
    qos: str = Field("", pattern="^(|realtime|normal|batch)$")
    policy: ScreenPolicy


class OutputCheckSettings(_Section):
    """The check of answers while they are made. To block it holds text back until its windows have passed."""

    policy: ScreenPolicy = ScreenPolicy.OFF
    check: str = Field("", description="an entry point of the group headrace.output_checks")
    window_chars: int = Field(512, ge=1, description="of text, judged at a time")
    stride_chars: int = Field(128, ge=1, description="from one window's begin to the next one's")
    budget_ms: int = Field(2_000, ge=1, description="longest wait for a verdict")
    on_timeout: str = Field("closed", pattern="^(open|closed)$", description="without a verdict: let pass, or refuse")
    threads: int = Field(1, ge=1, le=64, description="requests checked at a time")

    @model_validator(mode="after")
    def _overlapping(self) -> Self:
        if self.stride_chars > self.window_chars:
            raise ValueError("stride_chars is over window_chars: text between two windows would not be looked at")
        return self


class ScreenSettings(_Section):
    """The screen of prompts. The first rule that fits a request counts, else `policy`."""

    policy: ScreenPolicy = ScreenPolicy.OFF
    rules: tuple[ScreenRule, ...] = ()
    model: str = Field("minilm", description="a screen of the entry point group headrace.screens")
    budget_ms: int = Field(2_000, ge=1, description="longest wait for a verdict")
    on_timeout: str = Field("closed", pattern="^(open|closed)$", description="without a verdict: let pass, or refuse")
    threads: int = Field(1, ge=1, le=64, description="batches judged at a time")
    max_batch: int = Field(4, ge=1, le=256, description="windows of a batch")
    max_waiting: int = Field(1_024, ge=1, description="requests that wait for a verdict")
    output: OutputCheckSettings = OutputCheckSettings()

    @property
    def used(self) -> bool:
        """Whether any request is screened."""
        return any(policy is not ScreenPolicy.OFF for policy in (self.policy, *(rule.policy for rule in self.rules)))

    def policy_for(self, tenant: str, qos: str) -> ScreenPolicy:
        """`qos` in lower case."""
        fitting = (rule.policy for rule in self.rules if rule.tenant in ("", tenant) and rule.qos in ("", qos))
        return next(fitting, self.policy)


class SlaDefault(_Section):
    """What a request of the class has where it does not say; 0 is no SLA."""

    first_token_ms: int = Field(0, ge=0)
    total_ms: int = Field(0, ge=0)
    on_miss: str = Field("partial", pattern="^(partial|cancel|continue)$")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if 0 < self.total_ms < self.first_token_ms:
            raise ValueError("first_token_ms is over total_ms")
        return self


class SlaSettings(_Section):
    """Defaults of each class."""

    realtime: SlaDefault = SlaDefault()
    normal: SlaDefault = SlaDefault()
    batch: SlaDefault = SlaDefault()


class ResultsSettings(_Section):
    """Where answers go that were not there at their SLA. What has ended is kept for `ttl_s`, and goes earlier, the
    oldest first, where a bound is reached."""

    store: str = Field("", description="a file, or redis://HOST:PORT for several gateways; '': under models.home")
    ttl_s: float = Field(3_600.0, gt=0)
    max_results: int = Field(10_000, ge=1)
    max_bytes: int = Field(2**30, ge=1)
    background_s: float = Field(600.0, gt=0, description="longest time that an answer may take after its SLA")
    progress_s: float = Field(1.0, gt=0, description="how often what has been made meanwhile is stored")
    lost_after_s: float = Field(5.0, gt=0, description="a running result not stored for so long has lost its gateway")
    max_takeovers: int = Field(3, ge=0, description="how often another gateway goes on with an answer; 0: never")


class CacheSettings(_Section):
    """Answers that are kept for requests that are the same, each tenant's for itself. Off unless `enabled`, and only
    for calls that ask for it. What is oldest goes where a bound is reached."""

    enabled: bool = False
    store: str = Field("", description="a file, or redis://HOST:PORT for several gateways; '': under models.home")
    ttl_s: float = Field(3_600.0, gt=0)
    max_answers: int = Field(10_000, ge=1)
    max_bytes: int = Field(2**28, ge=1)
    max_answer_bytes: int = Field(2**20, ge=1, description="a longer answer is not kept")


class TenantQuota(_Section):
    """What one tenant may use; 0 is without limit."""

    max_requests: int = Field(0, ge=0, description="calls at once, at each gateway")
    requests_per_minute: int = Field(0, ge=0)
    tokens_per_minute: int = Field(0, ge=0, description="of prompts, and the most that answers may have")


Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class TokenSettings(_Section):
    """Tokens (JWT) of one issuer that say whose a call is. Each must have iss, aud and exp."""

    jwks: str = Field(
        pattern=r"^(https://[^\s@]+|http://(127\.0\.0\.1|localhost|\[::1\])[:/][^\s@]*|[^\s:]+)$",
        description="the issuer's public keys: a file, or an https:// URL",
    )
    issuer: str = Field(min_length=1)
    audience: str = Field(min_length=1)
    algorithms: Annotated[tuple[Algorithm, ...], BeforeValidator(_names)] = Field(
        ("RS256", "ES256", "EdDSA"), min_length=1
    )
    tenant_claim: str = Field("sub", min_length=1, description="the claim that names the tenant")
    known_only: bool = Field(False, description="only tenants that the file of keys names")
    leeway_s: float = Field(30.0, ge=0, le=600, description="how far clocks may be apart")
    max_lifetime_s: float = Field(86_400.0, ge=0, description="tokens that are valid for longer are refused; 0: none")
    once: bool = Field(False, description="a token is good for one call: it needs a jti")
    max_remembered: int = Field(100_000, ge=1, description="used tokens that are remembered until they expire")
    refresh_s: float = Field(300.0, ge=1, description="how often the URL is read")
    min_refresh_s: float = Field(10.0, ge=0.1, description="and how often at most, while a key is missing")
    keep_s: float = Field(86_400.0, ge=1, description="how long keys are good that cannot be read again")

    @property
    def is_url(self) -> bool:
        return self.jwks.startswith(("https://", "http://"))


class TenantsSettings(_Section):
    """Who may call, and how much. Without keys and tokens a call's tenant is what its metadata says."""

    tokens: TokenSettings | None = Field(None, description="none: no tokens are taken")
    keys_file: Path | None = Field(None, description="TOML file of tenants and the hashes of their keys")
    default: TenantQuota = Field(TenantQuota(), description="for what the file does not say of a tenant")
    redis: str = Field("", description="redis://HOST:PORT that counts for all gateways; '': each counts for itself")
    redis_away: str = Field("allow", pattern="^(allow|refuse)$", description="what becomes of calls without Redis")


class KserveSettings(_Section):
    """The door for KServe v2 clients on the gateway's port."""

    shared_memory_prefix: str = Field(
        "",
        pattern="^[A-Za-z0-9._-]{0,64}$",
        description="system shared memory whose names begin so may be registered; '': none",
    )


class _Environment(EnvSettingsSource):
    """HEADRACE_* variables. A value that should be JSON and is not is left to validation, which names every fault."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HEADRACE_", env_nested_delimiter="__", extra="forbid", frozen=True)

    transport: TransportSettings = TransportSettings()
    models: ModelsSettings = Field(default_factory=ModelsSettings)
    telemetry: TelemetrySettings = TelemetrySettings()
    gateway: GatewaySettings = GatewaySettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    executor: ExecutorSettings = ExecutorSettings()
    encoder: EncoderSettings = EncoderSettings()
    preprocess: PreprocessSettings = PreprocessSettings()
    screen: ScreenSettings = ScreenSettings()
    sla: SlaSettings = SlaSettings()
    results: ResultsSettings = ResultsSettings()
    cache: CacheSettings = CacheSettings()
    tenants: TenantsSettings = TenantsSettings()
    kserve: KserveSettings = KserveSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # load_settings merges, so that what is constructed is what was said


def load_settings(path: Path | None = None, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> Settings:
    """Settings from a TOML file (if named), under the environment, under `overrides` (section -> key -> value).

    Raises ConfigError that lists every fault as `section.key: what is wrong`.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    faults = [
        f"{name}: no section of this name"
        for name in os.environ
        if name.startswith("HEADRACE_")
        and "__" in name
        and name.removeprefix("HEADRACE_").split("__")[0].lower() not in Settings.model_fields
    ]
    try:
        merged = _merge(_merge(data, _Environment(Settings)()), overrides or {})
        settings = Settings(**merged)
    except ValidationError as error:
        faults += [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
    if faults:
        raise ConfigError("\n".join(faults))
    return settings


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = _merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged
