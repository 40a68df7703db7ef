"""What an executor can take of what it is sent: within its engine's vocabulary and context."""

from headrace.core.errors import InvalidRequest
from headrace.executor.engines.protocol import EngineSpec
from headrace.executor.sequence import Job


def check(job: Job, spec: EngineSpec) -> None:
    """Raises InvalidRequest."""
    sampling, prompt = job.sampling, job.prompt_ids
    if not len(prompt):
        raise InvalidRequest("the prompt is empty", field="token_ids", limit=">= 1 token")
    if int(prompt.max()) >= spec.vocab_size:
        raise InvalidRequest(
            f"token id {int(prompt.max())} is outside the vocabulary",
            field="token_ids",
            limit=f"0..{spec.vocab_size - 1}",
        )
    if len(prompt) + sampling.max_tokens > spec.context_tokens:
        raise InvalidRequest(
            f"prompt {len(prompt)} and answer {sampling.max_tokens} tokens are more than the context",
            field="sampling.max_tokens",
            limit=f"{spec.context_tokens} tokens together",
        )
    sampling.validate(spec.vocab_size)
    if len(job.answers) > sampling.n or any(index >= sampling.n for index in job.ended) or not job.open_answers:
        raise InvalidRequest(
            "the known answers are not those of the request",
            field="answer_token_ids",
            limit=f"{sampling.n} answers",
        )
    for index in job.open_answers:
        known = job.known(index)
        if len(known) >= sampling.max_tokens or (len(known) and int(known.max()) >= spec.vocab_size):
            raise InvalidRequest(
                f"answer {index} is over or none of this model's",
                field="answer_token_ids",
                limit=f"fewer than {sampling.max_tokens} tokens, each 0..{spec.vocab_size - 1}",
            )
