"""OpenVINO GenAI's continuous batching pipeline, in this process (no transport: an advantage it keeps)."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from headrace.benchmarks.closed_loop import Stream
from headrace.benchmarks.drivers.serve import Options, main


class Pipeline:
    """Steps the pipeline in a thread as long as a request is in it, and hands each request its new tokens."""

    def __init__(self, options: Options) -> None:
        self._genai: Any = import_module("openvino_genai")
        self._openvino: Any = import_module("openvino")
        self._numpy: Any = import_module("numpy")
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = options["cache_gib"]
        scheduler.max_num_seqs = options["num_streams"]
        scheduler.max_num_batched_tokens = options["step_tokens"]
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": options["threads"], "KV_CACHE_PRECISION": options["kv"]}
        self._pipeline = self._genai.ContinuousBatchingPipeline(options["folder"], scheduler, "CPU", properties)
        self._ids = itertools.count()
        self._running: dict[int, tuple[Any, asyncio.Queue[int]]] = {}
        self._wake = asyncio.Event()

    async def step_forever(self) -> None:
        while True:
            await self._wake.wait()
            while self._running:
                await asyncio.to_thread(self._pipeline.step)
                self._hand_out()
            self._wake.clear()

    def _hand_out(self) -> None:
        for key, (handle, queue) in list(self._running.items()):
            if handle.can_read():
                queue.put_nowait(sum(len(output.generated_ids) for output in handle.read().values()))
            if handle.get_status() != self._genai.GenerationStatus.RUNNING and not handle.can_read():
                del self._running[key]
                queue.put_nowait(0)  # the end

    async def stream(self, prompt: Sequence[int], max_tokens: int, qos: str = "normal") -> AsyncIterator[int]:
        """There are no classes here: `qos` counts for nothing."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        key, queue = next(self._ids), asyncio.Queue[int]()
        ids = self._openvino.Tensor(self._numpy.array([prompt], dtype=self._numpy.int64))
        self._running[key] = self._pipeline.add_request(key, ids, config), queue
        self._wake.set()
        while num_tokens := await queue.get():
            yield num_tokens


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Stream]:
    """Options: folder, threads, num_streams, step_tokens, cache_gib, kv."""
    pipeline = Pipeline(options)
    async with asyncio.TaskGroup() as group:
        steps = group.create_task(pipeline.step_forever())
        yield pipeline.stream
        steps.cancel()


if __name__ == "__main__":
    main(open_peer, ("openvino", "openvino-genai"))
