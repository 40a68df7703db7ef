"""Frames carry what has gathered, in order, and never more than a message holds."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.preprocess.v1.preprocess_pb2 import PreparedItem, PrepareResponse
from headrace.api.scheduler.v1.scheduler_pb2 import EnlistResponse
from headrace.chassis.outbox import Outbox, joined
from headrace.core.errors import Cancelled, Draining, InvalidRequest, Overloaded

BOUND_BYTES = 200


def item(size: int, name: str = "") -> PreparedItem:
    return PreparedItem(request_id=name, token_ids=bytes(size))


async def collected(outbox: Outbox[PreparedItem]) -> list[list[PreparedItem]]:
    return [frame async for frame in outbox.frames()]


@given(sizes=st.lists(st.integers(0, 300), max_size=30))
@settings(deadline=None)
def test_frames_fit_and_lose_nothing(sizes: list[int]) -> None:
    async def run() -> None:
        outbox: Outbox[PreparedItem] = Outbox(BOUND_BYTES)
        items = [item(size, str(number)) for number, size in enumerate(sizes)]
        for one in items:
            outbox.put(one)
        outbox.close()
        frames = await collected(outbox)
        assert [one for frame in frames for one in frame] == items
        for frame in frames:
            message: Message = PrepareResponse(items=frame)
            assert frame
            assert len(frame) == 1 or message.ByteSize() <= BOUND_BYTES

    asyncio.run(run())


async def test_small_items_share_a_frame() -> None:
    outbox: Outbox[PreparedItem] = Outbox(BOUND_BYTES)
    for _ in range(5):
        outbox.put(item(1))
    outbox.close()
    assert [len(frame) for frame in await collected(outbox)] == [5]


async def test_a_reader_waits_for_items_and_for_the_end() -> None:
    outbox: Outbox[PreparedItem] = Outbox(BOUND_BYTES)
    reader = asyncio.create_task(collected(outbox))
    for number in range(3):
        outbox.put(item(1, str(number)))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not reader.done()
    outbox.close()
    async with asyncio.timeout(30):
        assert [[one.request_id for one in frame] for frame in await reader] == [["0"], ["1"], ["2"]]


async def test_an_item_taken_back_does_not_go_out_nor_its_twin() -> None:
    outbox: Outbox[PreparedItem] = Outbox(BOUND_BYTES)
    twins = [item(1, "twin"), item(1, "twin")]
    for one in (*twins, item(1, "other")):
        outbox.put(one)
    outbox.discard(twins[0])
    outbox.discard(item(1, "never put in"))
    outbox.close()
    assert [[one.request_id for one in frame] for frame in await collected(outbox)] == [["twin", "other"]]


async def test_what_is_taken_back_is_what_has_not_gone_out() -> None:
    outbox: Outbox[PreparedItem] = Outbox(BOUND_BYTES)
    items = [item(150, name) for name in "abc"]
    for one in items:
        outbox.put(one)
    frames = outbox.frames()
    assert await anext(frames) == items[:1]
    assert not outbox.discard(items[0])
    assert outbox.take_back() == items[1:]
    assert not outbox.discard(items[1])
    outbox.close()
    assert [frame async for frame in frames] == []


async def test_the_first_close_counts_and_what_has_gathered_goes_out_before_its_error() -> None:
    outbox: Outbox[PreparedItem] = Outbox(BOUND_BYTES)
    sent: list[PreparedItem] = []

    async def reading() -> None:
        outbox.put(item(1, "a"))
        outbox.close(Draining("leaving"))
        outbox.close(Cancelled("too late"))
        await asyncio.Event().wait()

    with pytest.raises(Draining):
        await outbox.exchange(reading(), writes_to(sent))
    assert [one.request_id for one in sent] == ["a"]


async def test_an_exchange_ends_with_what_it_has_to_say_once_the_peer_has_sent_its_last() -> None:
    outbox: Outbox[PreparedItem] = Outbox(BOUND_BYTES)
    sent: list[PreparedItem] = []

    async def reading() -> None:
        outbox.put(item(1, "answer"))

    await outbox.exchange(reading(), writes_to(sent))
    assert [one.request_id for one in sent] == ["answer"]


async def test_what_the_peer_did_wrong_ends_the_exchange_after_what_has_gathered() -> None:
    outbox: Outbox[PreparedItem] = Outbox(BOUND_BYTES)
    sent: list[PreparedItem] = []

    async def reading() -> None:
        outbox.put(item(1, "answer"))
        raise InvalidRequest("nonsense")

    with pytest.raises(InvalidRequest):
        await outbox.exchange(reading(), writes_to(sent))
    assert [one.request_id for one in sent] == ["answer"]


async def test_a_peer_that_does_not_read_is_cut_off_and_no_longer_read() -> None:
    outbox: Outbox[PreparedItem] = Outbox(BOUND_BYTES)
    outbox.put(item(1))
    ended = []

    async def reading() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def stalled(items: list[PreparedItem]) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(30):
        with pytest.raises(Overloaded):
            await outbox.exchange(reading(), stalled, longest_write_s=0.01)
    assert ended
    assert outbox.take_back() == [item(1)]


def writes_to(sent: list[PreparedItem]) -> Callable[[list[PreparedItem]], Awaitable[None]]:
    async def write(items: list[PreparedItem]) -> None:
        sent.extend(items)

    return write


def test_joined_parts_are_one_frame() -> None:
    parts = [EnlistResponse(lease_ms=1, resumed_request_ids=["a"]), EnlistResponse(resumed_request_ids=["b"])]
    assert joined(parts) == EnlistResponse(lease_ms=1, resumed_request_ids=["a", "b"])
    assert parts[0] == EnlistResponse(lease_ms=1, resumed_request_ids=["a"])
