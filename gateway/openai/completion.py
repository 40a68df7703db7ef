"""Completions of texts: a body of /v1/completions to the gateway's own requests, one a prompt, and their answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.api.gateway.v1 import gateway_pb2
from headrace.core.errors import InvalidRequest, Unsupported
from headrace.gateway.openai.body import Neutral, Prompts, UInt32, packed
from headrace.gateway.openai.form import FINISH_REASONS, Answer
from headrace.gateway.openai.headers import Asked
from headrace.gateway.openai.logprobs import TokenTexts
from headrace.gateway.openai.sampling import GenerationBody

MAX_PROMPTS = 128


class CompletionBody(GenerationBody):
    neutral: ClassVar[Neutral] = GenerationBody.neutral | {
        "best_of": (1,),
        "suffix": ("",),
    }
    prompt: Prompts
    logprobs: UInt32 | None = None
    echo: bool = False

    @property
    def echoed(self) -> Sequence[str | list[int]]:
        """The prompts that go before their answers; none unless it is asked for."""
        return self.prompt if self.echo else ()


def decode_completion(body: CompletionBody, asked: Asked) -> list[gateway_pb2.GenerateRequest]:
    """Raises InvalidRequest, Unsupported."""
    body.check_stream()
    if body.echo and body.logprobs is not None:
        raise Unsupported(
            "logprobs with echo would be those of the prompt too, which are not computed",
            field="logprobs",
            limit="without echo",
        )
    if len(body.prompt) > MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt has {len(body.prompt)} prompts, must have {MAX_PROMPTS} at most",
            field="prompt",
            limit=str(MAX_PROMPTS),
        )
    requests = []
    for place, prompt in enumerate(body.prompt):
        request = gateway_pb2.GenerateRequest(
            model=body.model,
            sampling=body.sampling(body.max_tokens, body.logprobs),
            **asked.generation_fields,
        )
        if place:
            request.request_id += f"-{place}"
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.tokens.token_ids = packed(prompt)
        requests.append(request)
    return requests


@dataclass(frozen=True, slots=True)
class CompletionForm:
    id_prefix: ClassVar[str] = "cmpl-"
    whole: ClassVar[str] = "text_completion"
    part: ClassVar[str] = "text_completion"
    tokens: TokenTexts
    num_answers: int
    echoed: Sequence[str | list[int]]
    text_of: Callable[[Sequence[int]], str]

    def _echo(self, index: int) -> str:
        if not self.echoed:
            return ""
        prompt = self.echoed[index // self.num_answers]
        return prompt if isinstance(prompt, str) else self.text_of(prompt)

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {
            "index": index,
            "text": self._echo(index) + "".join(answer.text),
            "logprobs": self.tokens.completion(answer.logprobs, 0),
            "finish_reason": FINISH_REASONS.get(answer.finish),
        }

    def delta(self, index: int, piece: gateway_pb2.GenerateResponse, begun: bool, offset: int) -> dict[str, Any]:
        return {
            "index": index,
            "text": piece.text if begun else self._echo(index) + piece.text,
            "logprobs": self.tokens.completion(piece.logprobs, offset),
            "finish_reason": FINISH_REASONS.get(piece.finish_reason),
        }
