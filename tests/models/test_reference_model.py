"""The built-in model: bytes are tokens."""

from pathlib import Path

from tokenizers import Tokenizer

from headrace.models import reference
from headrace.models.manifest import verify
from headrace.models.repository import Repository


def test_ids_are_bytes_and_text_comes_back(tmp_path: Path) -> None:
    entry = reference.install(tmp_path)
    tokenizer = Tokenizer.from_file(str(entry.tokenizer))
    text = "".join(map(chr, range(128))) + " é中文😀\r\n  x"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("<eos>").ids == [256]
    assert tokenizer.encode("").ids == []


def test_every_byte_has_its_own_letter() -> None:
    tokenizer = reference.byte_tokenizer()
    assert [tokenizer.id_to_token(byte) for byte in range(256)] == [
        reference.byte_letters()[byte] for byte in range(256)
    ]
    assert tokenizer.get_vocab_size() == 257


def test_entry_is_complete_and_installing_again_changes_nothing(tmp_path: Path) -> None:
    entry = reference.install(tmp_path)
    written = (entry.folder / "model.toml").stat().st_mtime_ns
    assert reference.install(tmp_path) == entry == Repository(tmp_path).get("reference")
    assert (entry.folder / "model.toml").stat().st_mtime_ns == written
    assert (entry.info.vocab_size, entry.info.context_tokens, entry.info.eos_token_ids) == (512, 4096, (256,))
    assert entry.info.kind == "decoder"
    assert entry.chat_template
    verify(entry)
