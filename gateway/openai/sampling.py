"""What both kinds of generation may ask for: length, sampling, stops, a stream."""

from typing import Annotated, ClassVar

from pydantic import Field

from headrace.api.types.v1 import types_pb2
from headrace.core.errors import InvalidRequest
from headrace.core.request import MAX_SEED
from headrace.gateway.openai.body import Body, Neutral, Texts, UInt32
from headrace.gateway.openai.response_format import Constrained

DEFAULT_TEMPERATURE = 1.0
"""Of OpenAI's clients; the gateway's own is greedy."""

_PLAIN = ("min_tokens", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "n")
_NARROWING = ("top_p", "top_k", "min_p")


class StreamOptions(Body):
    neutral: ClassVar[Neutral] = {
        "include_obfuscation": (False,),
        "continuous_usage_stats": (False,),
    }
    include_usage: bool = False


class GenerationBody(Constrained):
    """Fields of OpenAI's, and those of vLLM's that the gateway knows. `user` and the two after it change nothing."""

    neutral: ClassVar[Neutral] = {
        "logit_bias": ({},),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "metadata": ({},),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
        "moderation": (),
    }

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: UInt32 | None = None
    temperature: float = DEFAULT_TEMPERATURE
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: UInt32 | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=MAX_SEED)] | None = None
    stop: Texts = Field([])
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**32 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: UInt32 | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[UInt32] = Field([])
    ignore_eos: bool = False

    @property
    def num_answers(self) -> int:
        """To each prompt."""
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def check_stream(self) -> None:
        """Raises InvalidRequest."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options are for a stream only", field="stream_options", limit="with stream true"
            )

    def sampling(self, max_tokens: int | None, logprobs: int | None) -> types_pb2.Sampling:
        """Greedy where the temperature is 0: what narrows the choice changes nothing then, and is left out."""
        sampling = types_pb2.Sampling(
            temperature=self.temperature,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
        )
        given: dict[str, int | float | None] = {name: getattr(self, name) for name in _PLAIN}
        given |= {"max_tokens": max_tokens, "logprobs": logprobs, "top_p": self.top_p}
        given["top_k"] = 0 if self.top_k == -1 else self.top_k  # off, as vLLM spells it
        given["seed"] = None if self.seed is None else self.seed % (MAX_SEED + 1)
        for name, value in given.items():
            if value is not None and not (self.temperature == 0 and name in _NARROWING):
                setattr(sampling, name, value)
        self.constrain(sampling)
        return sampling
