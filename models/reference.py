"""The built-in model `reference`: bytes for tokens and no weights; only the reference engine can run it.

Token ids 0..255 are the bytes of the text, 256 ends an answer, 257..511 stand for nothing.
"""

import hashlib
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace.models.manifest import Manifest
from headrace.models.repository import ModelEntry, Repository
from headrace.models.store import Store

NAME = "reference"
EOS_TOKEN_ID = 256
VOCAB_SIZE = 512
CONTEXT_TOKENS = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def install(home: Path) -> ModelEntry:
    """Writes the model under a home folder unless it is there, and returns it."""
    tokenizer = byte_tokenizer().to_str()
    digest = hashlib.sha256(json.dumps([tokenizer, CHAT_TEMPLATE, CONTEXT_TOKENS]).encode()).hexdigest()
    store, repository = Store(home), Repository(home)
    with store.locked(NAME):
        if NAME in repository.names() and repository.get(NAME).info.digest == digest:
            return repository.get(NAME)
        with store.staged(NAME) as folder:
            (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
            (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
            store.publish(
                NAME,
                Manifest(
                    kind="decoder",
                    digest=digest,
                    context_tokens=CONTEXT_TOKENS,
                    vocab_size=VOCAB_SIZE,
                    eos_token_ids=(EOS_TOKEN_ID,),
                    source="built in",
                    license="Apache-2.0",
                    weights="none",
                ),
            )
    return repository.get(NAME)


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose id of byte b is b."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in byte_letters().items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    return tokenizer


def byte_letters() -> dict[int, str]:
    """The letter by which byte-level BPE writes each byte (as GPT-2 set it): printable ones stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}
