"""A scenario file: the fleet, its faults, the streams, the promises, the policies. Every fault is named at once."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.core.request import QosClass
from headrace.scheduler.policy.events import Padding
from headrace.scheduler.policy.flights import MOST_IN_FLIGHT
from headrace.simulator.executor import Device
from headrace.simulator.policies import POLICIES, Policy, Setting, limits_of
from headrace.simulator.step_times import StepTimes
from headrace.simulator.workload.spec import Spec
from headrace.simulator.workload.stream import Stream

FOLDER = Path(__file__).parent / "scenarios"

Seconds = Annotated[float, Field(ge=0, le=3600)]
_TIMES = StepTimes()
_DEVICE = Device()


class StepSpec(Spec):
    """The linear model of a step, in seconds."""

    base_s: Seconds = _TIMES.base_s
    per_decode_s: Seconds = _TIMES.per_decode_s
    per_prefill_token_s: Seconds = _TIMES.per_prefill_token_s
    per_context_token_s: Seconds = _TIMES.per_context_token_s

    @field_validator("base_s")
    @classmethod
    def _takes_time(cls, base_s: float) -> float:
        if not base_s > 0:
            raise ValueError("must be above 0: a step takes time")
        return base_s


class PaddingSpec(Spec):
    """Of an encoder: rows of a batch, what padded lengths are multiples of, how many members may share a row."""

    batch_rows: int = Field(16, ge=1, le=4096)
    align_tokens: int = Field(64, ge=1, le=65_536)
    most_a_row: int = Field(1, ge=1, le=1024)


class FleetSpec(Spec):
    """`count` equal executors. Those with `padding` are encoders: they hold two batches, and a block is a context."""

    count: int = Field(1, ge=1, le=100_000)
    num_slots: int = Field(_DEVICE.num_slots, ge=1)
    num_blocks: int = Field(_DEVICE.num_blocks, ge=1)
    block_tokens: int = Field(_DEVICE.block_tokens, ge=1)
    context_tokens: int = Field(_DEVICE.context_tokens, ge=4, validate_default=True)
    step_tokens: int = Field(_DEVICE.step_tokens, ge=2)
    min_chunk_tokens: int = Field(_DEVICE.min_chunk_tokens, ge=1)
    step: StepSpec = StepSpec()
    padding: PaddingSpec | None = None

    @field_validator("context_tokens")
    @classmethod
    def _held(cls, context_tokens: int, info: ValidationInfo) -> int:
        room = info.data.get("num_blocks", context_tokens) * info.data.get("block_tokens", 1)
        if room < context_tokens:
            raise ValueError(f"is above the {room} tokens that num_blocks of block_tokens hold")
        return context_tokens

    def devices(self) -> tuple[Device, ...]:
        device = Device(
            **self.model_dump(exclude={"count", "step", "padding"}), times=StepTimes(**self.step.model_dump())
        )
        if self.padding:
            slots = MOST_IN_FLIGHT * self.padding.batch_rows * self.padding.most_a_row
            packs = self.padding.most_a_row > 1
            padding = Padding(self.padding.batch_rows, self.padding.align_tokens, packs)
            device = replace(
                device, num_slots=slots, num_blocks=slots, block_tokens=self.context_tokens, padding=padding
            )
        return (device,) * self.count


class FaultSpec(Spec):
    """At `at_s` the executor of this number (from 0) crashes, starts again, or drains."""

    kind: Literal["crash", "start", "drain"]
    executor: int = Field(ge=0)
    at_s: float = Field(ge=0)
    silent: bool = False


class Promise(Spec):
    """What a class is promised: first token and whole answer within so many seconds. None: nothing."""

    ttft_s: float | None = Field(None, gt=0)
    total_s: float | None = Field(None, gt=0)


class PolicySpec(Spec):
    what: str = ""
    settings: dict[str, Setting] = Field(default_factory=dict)
    one_class: bool = False
    static: bool = False

    @field_validator("settings")
    @classmethod
    def _known(cls, settings: dict[str, Setting]) -> dict[str, Setting]:
        return _checked(settings)


class Scenario(Spec):
    """`duration_s` is how long requests come (None: as long as its traces do); the run goes on until all have ended.
    `hop_s` is the way of one message between services; `policy` changes the scheduler's settings for every policy."""

    name: str = Field(min_length=1)
    what: str = ""
    seed: int = Field(1, ge=0)
    duration_s: float | None = Field(None, gt=0, le=1e7)
    model: str = Field("smollm2", min_length=1)
    hop_s: float = Field(0.001, ge=0, le=10)
    fleet: tuple[FleetSpec, ...] = Field((FleetSpec(),), min_length=1)
    faults: tuple[FaultSpec, ...] = ()
    streams: tuple[Stream, ...] = Field(min_length=1)
    sla: dict[str, Promise] = Field(default_factory=dict)
    policy: dict[str, Setting] = Field(default_factory=dict)
    policies: dict[str, PolicySpec] = Field(default_factory=dict)

    @field_validator("policy")
    @classmethod
    def _known(cls, settings: dict[str, Setting]) -> dict[str, Setting]:
        return _checked(settings)

    @field_validator("sla")
    @classmethod
    def _classes(cls, sla: dict[str, Promise]) -> dict[str, Promise]:
        names = [qos.name.lower() for qos in QosClass]
        if unknown := [name for name in sla if name not in names]:
            raise ValueError(f"no class {', '.join(unknown)}; there are {', '.join(names)}")
        return sla

    @field_validator("streams")
    @classmethod
    def _named(cls, streams: tuple[Stream, ...]) -> tuple[Stream, ...]:
        names = [stream.name for stream in streams]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two streams of one name: {', '.join(twice)}")
        return streams

    @field_validator("faults")
    @classmethod
    def _within(cls, faults: tuple[FaultSpec, ...], info: ValidationInfo) -> tuple[FaultSpec, ...]:
        count = sum(part.count for part in info.data.get("fleet", ()))
        if count and (beyond := [str(fault.executor) for fault in faults if fault.executor >= count]):
            raise ValueError(f"no executor {', '.join(beyond)}; there are 0 to {count - 1}")
        return faults

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(device for part in self.fleet for device in part.devices())

    def policy_named(self, name: str) -> Policy:
        """The scenario's own, else one of those known to all. Raises InvalidRequest."""
        if spec := self.policies.get(name):
            return Policy(spec.what, spec.settings, spec.one_class, spec.static)
        if name not in POLICIES:
            known = ", ".join([*POLICIES, *self.policies])
            raise InvalidRequest(f"no policy {name!r}; there are: {known}", field="policy", limit=known)
        return POLICIES[name]


def load_scenario(name: str) -> Scenario:
    """From a file, else the one of this name that comes with the suite. Raises ConfigError that lists every fault."""
    path = Path(name)
    if not path.is_file():
        known = sorted(each.stem for each in FOLDER.glob("*.toml"))
        if name not in known:
            raise ConfigError(f"{name}: no such file, nor a scenario of the suite: {', '.join(known)}")
        path = FOLDER / f"{name}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse_scenario(data, str(path))


def parse_scenario(data: dict[str, Any], origin: str) -> Scenario:
    """Raises ConfigError with a line a fault: origin, field, what is wrong."""
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        faults = error.errors()
        # a list whose only item is at fault is also called too short
        inner = {fault["loc"][:depth] for fault in faults for depth in range(1, len(fault["loc"]))}
        faults = [fault for fault in faults if not (fault["type"] == "too_short" and fault["loc"] in inner)]
        lines = [f"{origin}: {_place(fault['loc'])}: {_message(fault['msg'])}" for fault in faults]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "scenario"


def _message(text: str) -> str:
    return text.removeprefix("Value error, ").replace("Input should be", "must be")


def _checked(settings: dict[str, Setting]) -> dict[str, Setting]:
    try:
        limits_of(settings)
    except InvalidRequest as error:
        raise ValueError(error.message) from error
    return settings
