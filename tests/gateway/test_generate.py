"""The path of a generation through the real gateway."""

from headrace.api.types.v1.types_pb2 import Displacement, Logprobs, TokenLogprob
from headrace.chassis import signals
from headrace.core.request import FinishReason, Precision


async def test_streams_an_answer_with_usage_last(world):
    async with world() as w:
        pieces = [piece async for piece in w.client.stream("bytes", "hi there", max_tokens=9, seed=5)]
        assert "".join(piece.text for piece in pieces) == "hello"
        assert b"".join(bytes(piece.token_ids) for piece in pieces) == b"hello\0"
        assert [piece.finish_reason for piece in pieces][-1] is FinishReason.STOP
        assert all(piece.finish_reason is FinishReason.NONE for piece in pieces[:-1])
        assert [piece.usage is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert (pieces[-1].usage.prompt_tokens, pieces[-1].usage.completion_tokens) == (8, 6)
        assert pieces[-1].usage.cached_prompt_tokens == 1
        assert pieces[0].precision is Precision.INT8
        assert all(piece.precision is Precision.ANY for piece in pieces[1:])
        await w.idle()
        [submission], [start] = w.scheduler.submissions, w.executor.starts
        assert (submission.prompt_tokens, submission.max_output_tokens, submission.n) == (8, 9, 1)
        assert submission.tenant == "default"
        assert (start.sampling.max_tokens, start.sampling.seed, start.batch_id) == (9, 5, "batch-7")
        assert start.batch_trace.traceparent == submission_batch_trace(w)
        assert not w.executor.cancelled
        assert not w.scheduler.cancelled


def submission_batch_trace(w):
    return w.scheduler.placement("").placements[0].batch_trace.traceparent


async def test_who_makes_room_travels_from_the_placement_to_the_start(world):
    async with world() as w:
        w.scheduler.displaced = [Displacement(request_id="a"), Displacement(request_id="b", drop_kv=True)]
        await w.client.generate("bytes", "x")
        assert list(w.executor.starts[0].displaced) == w.scheduler.displaced


async def test_draws_a_seed_and_fills_in_max_tokens(world):
    async with world() as w:
        await w.client.generate("bytes", "x")
        await w.client.generate("bytes", "x")
        await w.client.generate("small", "0123456789")
        seeds = [start.sampling.seed for start in w.executor.starts]
        assert len(set(seeds)) == 3
        assert [start.sampling.max_tokens for start in w.executor.starts] == [256, 256, 6]


async def test_token_and_chat_prompts(world):
    async with world() as w:
        await w.client.generate("bytes", [1, 2, 255])
        await w.client.generate("bytes", [{"role": "user", "content": "yo"}])
        assert w.executor.starts[0].token_ids == b"\x01\0\0\0\x02\0\0\0\xff\0\0\0"
        assert w.executor.starts[1].token_ids[::4] == b"user:yo\n"


async def test_n_answers_end_one_by_one(world):
    async def script(run):
        run.send(b"a", index=0)
        run.send(b"b", index=1)
        run.send(b"A", index=0, finish=FinishReason.LENGTH)
        run.send(b"B\0", index=1, finish=FinishReason.STOP)

    async with world() as w:
        w.executor.script = script
        first, second = await w.client.generate("bytes", "x", n=2)
        assert (first.text, first.finish_reason) == ("aA", FinishReason.LENGTH)
        assert (second.text, second.finish_reason) == ("bB", FinishReason.STOP)
        assert first.usage.completion_tokens == 5
        await w.idle()
        assert not w.executor.cancelled


async def test_stop_string_over_pieces_cancels_at_the_executor(world, until):
    async def script(run):
        for part in (b"one EN", b"D", b" more", b" and more"):
            run.send(part)

    async with world() as w:
        w.executor.script = script
        answer = await w.client.generate("bytes", "x", stop=["END"])
        assert (answer.text, answer.finish_reason) == ("one ", FinishReason.STOP)
        assert bytes(answer.token_ids) == b"one END"
        assert answer.usage.completion_tokens == 7
        await until(lambda: w.executor.cancelled == [w.executor.starts[0].request_id])
        await w.idle()
        assert not w.executor.starts[0].sampling.stop


async def test_stop_string_of_one_answer_leaves_the_others_running(world):
    async def script(run):
        run.send(b"go! on", index=0)
        run.send(b"fine", index=1)
        run.send(b"dropped", index=0)
        run.send(b" too", index=1, finish=FinishReason.LENGTH)
        run.send(b"dropped", index=0, finish=FinishReason.LENGTH)

    async with world() as w:
        w.executor.script = script
        first, second = await w.client.generate("bytes", "x", n=2, stop=["!"])
        assert (first.text, first.finish_reason) == ("go", FinishReason.STOP)
        assert (second.text, second.finish_reason) == ("fine too", FinishReason.LENGTH)
        await w.idle()


async def test_characters_are_whole_and_logprobs_come_along(world):
    async def script(run):
        for byte in "é€".encode():
            chosen = TokenLogprob(token_id=byte, logprob=-0.5)
            run.send(bytes([byte]), logprobs=[Logprobs(chosen=chosen, top=[chosen])])
        run.send(b"\xe2", finish=FinishReason.LENGTH)

    async with world() as w:
        w.executor.script = script
        pieces = [piece async for piece in w.client.stream("bytes", "x", logprobs=1)]
        assert "".join(piece.text for piece in pieces) == "é€\ufffd"
        assert all("\ufffd" not in piece.text for piece in pieces[:-1])
        logprobs = [item for piece in pieces for item in piece.logprobs]
        assert [item.chosen.token_id for item in logprobs] == list("é€".encode())
        assert logprobs[0].top[0].logprob == -0.5


async def test_lists_models_ready_once_an_executor_has_answered(world):
    async with world() as w:
        before = {model.name: model for model in await w.client.models()}
        assert set(before) == {"bytes", "small", "encoder"}
        assert (before["bytes"].context_tokens, before["bytes"].vocab_size, before["bytes"].kind) == (
            4096,
            256,
            "decoder",
        )
        assert not before["bytes"].ready
        await w.client.generate("bytes", "x")
        assert {model.name for model in await w.client.models() if model.ready} == {"bytes"}


async def test_span_says_what_the_call_was(world):
    async with world() as w:
        await w.client.generate("bytes", "four", max_tokens=6, qos="realtime", request_id="r-1")
        span = await w.span()
        assert span.name == signals.GATEWAY_GENERATE
        wanted = {
            signals.GENAI_OPERATION: "text_completion",
            signals.GENAI_MODEL: "bytes",
            signals.GENAI_MAX_TOKENS: 6,
            signals.GENAI_INPUT_TOKENS: 4,
            signals.GENAI_OUTPUT_TOKENS: 6,
            signals.GENAI_FINISH_REASONS: ("stop",),
            signals.QOS_CLASS: "realtime",
            signals.REQUEST_ID: "r-1",
            signals.TENANT: "default",
            signals.BATCH_ID: "batch-7",
            signals.EXECUTOR_ID: "executor-0",
            signals.PRECISION: "int8",
        }
        assert wanted.items() <= span.attributes.items()
        assert span.attributes[signals.TTFT_MS] > 0
        assert signals.ERROR_TYPE not in span.attributes
        assert [f"{link.context.trace_id:032x}" for link in span.links] == ["0af7651916cd43dd8448eb211c80319c"]
        span_id = f"{span.context.span_id:016x}"
        assert w.scheduler.submissions[0].trace.traceparent.split("-")[2] == span_id
        assert w.executor.starts[0].trace.traceparent.split("-")[2] == span_id


async def test_outputs_that_gathered_go_out_as_one_piece(world):
    async def script(run):
        for byte in b"0123456789":
            run.send(bytes([byte]))
        run.send(finish=FinishReason.LENGTH)

    async with world(max_buffered_frames=2) as w:
        w.executor.script = script
        answer = await w.client.generate("bytes", "x")
        assert answer.text == "0123456789"
        assert answer.usage.completion_tokens == 10
