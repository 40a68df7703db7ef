"""tokenizer.json from a GGUF file's vocabulary: byte-level BPE, cut as the file's `tokenizer.ggml.pre` names it.

The patterns are those of llama.cpp (llm_tokenizer_bpe) and of transformers' GGUF converters.
"""

from collections.abc import Mapping

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from headrace.core.errors import InvalidRequest
from headrace.models.gguf_file import CONTROL, USER_DEFINED, Vocabulary

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build(vocabulary: Vocabulary, probes: Mapping[str, list[int]]) -> Tokenizer:
    """The tokenizer, checked to give the ids that `probes` says. Raises InvalidRequest for a kind it does not know."""
    if vocabulary.model != "gpt2":
        raise InvalidRequest(
            f"the GGUF file's tokenizer is of kind {vocabulary.model!r}; only byte-level BPE ('gpt2') is read "
            "from GGUF. Add the model from its safetensors instead.",
            field="source",
        )
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    numbers = {token: index for index, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=merges))
    tokenizer.pre_tokenizer = _splitting(vocabulary.splitting)
    tokenizer.decoder = decoders.ByteLevel()
    added = {
        token: AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    }
    tokenizer.add_special_tokens([token for token in added.values() if token.special])
    tokenizer.add_tokens([token for token in added.values() if not token.special])
    if vocabulary.start:
        special = [(vocabulary.start, numbers[vocabulary.start])]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{vocabulary.start} $A", special_tokens=special
        )
    for text, expected in probes.items():
        if (ids := tokenizer.encode(text, add_special_tokens=False).ids) != expected:
            raise InvalidRequest(f"the tokenizer made of the GGUF file cuts {text!r} to {ids}, not to {expected}")
    return tokenizer


def _splitting(name: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    match name:
        case "default" | "gpt-2":
            return byte_level
        case "smollm" | "starcoder" | "refact" | "command-r":
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        case "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe":
            return _words("{1,3}")
        case "qwen2":
            return _words("")
    raise InvalidRequest(f"the GGUF file cuts text by {name!r}, which is not known here", field="source")


def _words(digits: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS.format(digits=digits)), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
