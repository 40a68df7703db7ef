"""Frames carry what has gathered, in order, and never more than a message holds."""

import asyncio

from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.preprocess.v1.preprocess_pb2 import PreparedItem, PrepareResponse
from headrace.chassis.outbox import Outbox

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
