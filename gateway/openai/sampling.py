"""What both kinds of generation may ask for: length, sampling, stops, a stream."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from headrace.api.types.v1 import types_pb2
from headrace.core.errors import InvalidRequest
from headrace.core.request import MAX_SEED
from headrace.gateway.openai.body import UINT32, Body, Neutral, Texts, UInt32, wrong
from headrace.gateway.openai.response_format import Constrained

DEFAULT_TEMPERATURE = 1.0
"""Of OpenAI's clients; the gateway's own is greedy."""

_PLAIN = ("min_tokens", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "n")
_NARROWING = ("top_p", "top_k", "min_p")


def _biases(given: Any) -> Any:
    """JSON has no numbers for keys."""
    if not isinstance(given, dict) or not all(key.isascii() and key.isdigit() for key in given):
        wrong("must be an object of token ids and what is added to their logits")
    biases = {int(key): added for key, added in given.items()}
    if any(token > UINT32 for token in biases):
        wrong(f"must have token ids of 0..{UINT32}")
    return biases


class StreamOptions(Body):
    neutral: ClassVar[Neutral] = {
        "include_obfuscation": (False,),
        "continuous_usage_stats": (False,),
    }
    include_usage: bool = False


class GenerationBody(Constrained):
    """Fields of OpenAI's, and those of vLLM's that the gateway knows. `user` and the two after it change nothing."""

    neutral: ClassVar[Neutral] = {
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
    logit_bias: Annotated[dict[int, float], BeforeValidator(_biases)] = Field({})

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
            logit_bias=self.logit_bias,
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
