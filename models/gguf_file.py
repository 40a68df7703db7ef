"""What a GGUF file says of its model, apart from the weights themselves."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from headrace.core.errors import InvalidRequest
from headrace.models.gguf_header import check_header

# Control tokens that end a turn or a text in the chat formats at hand. A file names only some of its own, so the others
# are known by their text, as llama.cpp does (llama_vocab::impl::load).
END_TOKENS = frozenset(
    ("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>")
)
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


class GgufFile:
    """An opened GGUF file. Raises InvalidRequest if it is none."""

    def __init__(self, path: Path) -> None:
        try:
            check_header(path)
            self.reader = GGUFReader(path)
        except (ValueError, OSError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise InvalidRequest(f"{path} is no readable GGUF file: {error}", field="source") from error

    def value(self, key: str, default: Any = None) -> Any:
        """A metadata value; keys that open with a dot belong to the architecture."""
        field = self.reader.fields.get(self.architecture + key if key.startswith(".") else key)
        return default if field is None else field.contents()

    def wanted(self, key: str) -> Any:
        """A metadata value; raises InvalidRequest where there is none."""
        value = self.value(key)
        if value is None:
            raise InvalidRequest(f"the GGUF file has no {key.removeprefix('.')}", field="source")
        return value

    @cached_property
    def architecture(self) -> str:
        field = self.reader.fields.get("general.architecture")
        if field is None:
            raise InvalidRequest("the GGUF file names no architecture", field="source")
        return str(field.contents())

    @cached_property
    def vocabulary(self) -> "Vocabulary":
        tokens = tuple(self.wanted("tokenizer.ggml.tokens"))
        return Vocabulary(
            model=str(self.wanted("tokenizer.ggml.model")),
            splitting=str(self.value("tokenizer.ggml.pre", "default")),
            tokens=tokens,
            types=tuple(self.value("tokenizer.ggml.token_type", [NORMAL] * len(tokens))),
            merges=tuple(self.value("tokenizer.ggml.merges", ())),
            start=tokens[int(self.wanted("tokenizer.ggml.bos_token_id"))] if self._starts_with_token else "",
        )

    @property
    def _starts_with_token(self) -> bool:
        return bool(self.value("tokenizer.ggml.add_bos_token", False))

    @property
    def context_tokens(self) -> int:
        return int(self.wanted(".context_length"))

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The named end tokens, then those known by their text."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id")
        named = [int(value) for key in keys if (value := self.value(f"tokenizer.ggml.{key}")) is not None]
        pairs = enumerate(zip(self.vocabulary.tokens, self.vocabulary.types, strict=True))
        known = [index for index, (token, kind) in pairs if kind == CONTROL and token in END_TOKENS]
        return tuple(dict.fromkeys(named + known))

    @property
    def weights(self) -> str:
        """The weights' commonest matrix format, such as Q4_1."""
        formats = Counter(tensor.tensor_type.name for tensor in self.reader.tensors if len(tensor.shape) > 1)
        return formats.most_common(1)[0][0] if formats else "none"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenizer as GGUF stores it.

    `splitting` names how text is cut before the merges; `start` is the token that every text begins with, or ''.
    """

    model: str
    splitting: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    start: str
