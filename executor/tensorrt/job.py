"""What one engine is built from, as one JSON text for the process that builds it."""

import json
from dataclasses import asdict, dataclass

from headrace.executor.tensorrt.ladder import Profile


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Each costs some speed, and is off unless wanted. `version_compatible`: later versions of the flavour run the
    engine; `hardware_compatible`: later architectures do; `weight_streaming`: weights may stay on the host;
    `refit`: weights can be replaced."""

    version_compatible: bool = False
    hardware_compatible: bool = False
    weight_streaming: bool = False
    refit: bool = False


PLAIN = BuildOptions()


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Paths are absolute; `timing_cache` is read and written where the flavour has one, '' without."""

    flavour: str
    architecture: str
    precision: str
    graph: str
    output: str
    profiles: tuple[Profile, ...]
    options: BuildOptions = PLAIN
    timing_cache: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "BuildJob":
        data = json.loads(text)
        found = [{name: tuple(map(tuple, each)) for name, each in profile.items()} for profile in data["profiles"]]
        return cls(**data | {"profiles": tuple(found), "options": BuildOptions(**data["options"])})
