"""The client for those who watch one executor: what its KV memory holds now."""

from dataclasses import dataclass

import grpc

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.chassis.status import from_rpc_error

ANSWER_S = 10.0
"""Longest wait for an answer."""


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """KV memory. `mapped_bytes` lie on physical pages; of them `used_bytes` belong to running requests or are kept for
    prompts that begin alike (`cached_bytes`); `fragmentation` is the share that is not used."""

    num_running: int
    block_bytes: int
    mapped_bytes: int
    used_bytes: int
    cached_bytes: int
    fragmentation: float
    prompt_tokens: int
    cached_prompt_tokens: int


async def memory_status(channel: grpc.aio.Channel) -> MemoryStatus:
    """Of the executor at the channel's end. Raises HeadraceError."""
    try:
        response = await ExecutorServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=ANSWER_S)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    memory = response.memory
    return MemoryStatus(
        num_running=response.num_running,
        block_bytes=memory.block_bytes,
        mapped_bytes=memory.mapped_bytes,
        used_bytes=memory.used_bytes,
        cached_bytes=memory.cached_bytes,
        fragmentation=memory.fragmentation,
        prompt_tokens=memory.prompt_tokens,
        cached_prompt_tokens=memory.cached_prompt_tokens,
    )
