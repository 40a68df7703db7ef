"""How long a step of the engine takes: linear in what is in it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step, of each decode, of each prefill token, and of each token of context that a decode reads.

    The defaults are SmolLM2-135M on two cores of a CPU, fitted to four measured steps: one decode 9 ms, 64 decodes
    34 ms (both at 160 tokens of context), 60 decodes with 512 prefill tokens 155 ms, 2 with 514 about 150 ms. The
    first two fix the base and a decode at that context; the prefill token is the least-squares fit of the others.
    How a decode's time divides between itself and its context is reckoned, not measured: 23,040 bytes of KV a token
    (30 layers, 3 heads of 64, keys and values in bf16) at 20 GB/s.
    """

    base_s: float = 8.603e-3
    per_decode_s: float = 0.2125e-3
    per_prefill_token_s: float = 0.2565e-3
    per_context_token_s: float = 1.152e-6

    def seconds(self, num_decodes: int, prefill_tokens: int, context_tokens: int) -> float:
        """`context_tokens` is the sum over the decodes."""
        return (
            self.base_s
            + self.per_decode_s * num_decodes
            + self.per_prefill_token_s * prefill_tokens
            + self.per_context_token_s * context_tokens
        )

    def saturation_rps(self, mean_prompt_tokens: float, mean_output_tokens: float, num_together: float) -> float:
        """Requests a second that one executor can finish at the most, `num_together` of them decoding at once."""
        context = mean_prompt_tokens + mean_output_tokens / 2
        decode_s = self.base_s / num_together + self.per_decode_s + self.per_context_token_s * context
        # the step that ends the prefill brings the first token
        return 1 / (self.per_prefill_token_s * mean_prompt_tokens + decode_s * max(mean_output_tokens - 1, 0) + 1e-9)
