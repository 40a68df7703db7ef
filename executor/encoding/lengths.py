"""How long a text is padded. A text's vector moves with the length it is padded to, so the text alone decides it."""

ALIGN_TOKENS = 16
_FINE_TOKENS = 64
_COARSE_TOKENS = 32


def padded_length(num_tokens: int, context_tokens: int) -> int:
    """The next multiple of 16 up to 64 tokens, of 32 beyond; never over the context."""
    step = ALIGN_TOKENS if num_tokens <= _FINE_TOKENS else _COARSE_TOKENS
    return min(-(-num_tokens // step) * step, context_tokens)
