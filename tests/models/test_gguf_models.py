"""GGUF files become graphs and tokenizers that compute what the file says."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from tokenizers import Tokenizer

from headrace.core.errors import EngineFault, InvalidRequest
from headrace.models import check, gguf_export, gguf_tokenizer, gguf_weights
from headrace.models.gguf_file import GgufFile, Vocabulary
from headrace.models.gguf_forward import GgufForward
from headrace.models.graph import Graph
from headrace.models.manifest import verify
from headrace.models.reference import byte_letters
from headrace.models.repository import ModelEntry

Write = Callable[..., Path]
Add = Callable[..., ModelEntry]

PROBES = np.random.default_rng(1).integers(3, 259, (2, 12))


@pytest.mark.parametrize(("architecture", "weights"), [("qwen2", "Q4_1"), ("qwen3", "Q8_0"), ("llama", "Q4_0")])
def test_each_architecture_is_added_and_agrees(
    tmp_path: Path, write_gguf: Write, add: Add, architecture: str, weights: str
) -> None:
    entry = add(tmp_path, write_gguf(tmp_path / "tiny.gguf", architecture, weights))
    assert weights in (entry.folder / "model.toml").read_text()
    verify(entry)


def test_an_entry_holds_what_the_file_says(tiny_llama: ModelEntry) -> None:
    info = tiny_llama.info
    assert (info.name, info.kind, info.context_tokens, info.vocab_size) == ("tiny", "decoder", 256, 260)
    assert info.eos_token_ids == (2, 0)  # the named one, and the end of text known by its name
    assert (tiny_llama.license, tiny_llama.chat_template) == ("mit", "{{ messages[0].content }}")
    tokenizer = Tokenizer.from_file(str(tiny_llama.tokenizer))
    encoding = tokenizer.encode("<|im_start|>the 12 é\n<|im_end|>")
    assert encoding.tokens == ["<|im_start|>", "th", "e", "Ġ", "1", "2", "Ġ", "Ã", "©", "Ċ", "<|im_end|>"]
    assert tokenizer.decode(encoding.ids) == "the 12 é\n"


def test_rounded_zero_points_are_refused_and_restored(tmp_path: Path, write_gguf: Write) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    gguf_export.export(path, tmp_path)
    file, graph = GgufFile(path), tmp_path / "openvino_model.xml"
    expected = list(GgufForward(file).logits(PROBES))
    rounded = Graph(graph).outputs(PROBES.tolist())
    with pytest.raises(EngineFault, match="does not compute what its source does"):
        check.compare(expected, rounded, check.QUANTISED_DECODER)
    assert gguf_weights.restore(file, graph) == 14  # seven matrices a layer
    check.compare(expected, Graph(graph).outputs(PROBES.tolist()), check.QUANTISED_DECODER)
    assert gguf_weights.restore(file, graph) == 0


@pytest.mark.parametrize(
    ("lengths", "width"), [((576, 1536), 96), ((64,), 64), ((2048, 8192), 128), ((96, 160), 32), ((33,), 32)]
)
def test_groups_are_as_wide_as_every_row_allows(lengths: tuple[int, ...], width: int) -> None:
    assert gguf_weights.group_width(lengths) == width


@pytest.mark.parametrize(("weights", "width"), [("Q4_1", "64"), ("Q4_0", None)])
def test_the_graph_says_how_wide_its_groups_are(
    tmp_path: Path, write_gguf: Write, add: Add, weights: str, width: str | None
) -> None:
    entry = add(tmp_path, write_gguf(tmp_path / "tiny.gguf", weights=weights))
    model = ov.Core().read_model(entry.graph)
    options = model.get_rt_info("runtime_options").value if model.has_rt_info("runtime_options") else {}
    assert options.get("DYNAMIC_QUANTIZATION_GROUP_SIZE") == width
    widths = {
        node.get_shape()[-1]
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and node.get_element_type() in (ov.Type.u4, ov.Type.u8)
    } - {1}
    assert widths == {int(width or gguf_weights.FILE_GROUP)}


def test_weights_of_another_file_are_not_taken(tmp_path: Path, write_gguf: Write) -> None:
    gguf_export.export(write_gguf(tmp_path / "tiny.gguf"), tmp_path)
    other = GgufFile(write_gguf(tmp_path / "other.gguf", seed=8))
    with pytest.raises(EngineFault, match="not in the GGUF file"):
        gguf_weights.restore(other, tmp_path / "openvino_model.xml")


def test_a_graph_of_other_weights_does_not_pass(tmp_path: Path, write_gguf: Write, tiny_llama: ModelEntry) -> None:
    other = GgufForward(GgufFile(write_gguf(tmp_path / "other.gguf", seed=8)))
    with pytest.raises(EngineFault, match="does not compute what its source does"):
        check.compare(
            list(other.logits(PROBES)), Graph(tiny_llama.graph).outputs(PROBES.tolist()), check.QUANTISED_DECODER
        )


@pytest.mark.parametrize("offset", [-3.0, 0.0, 0.4, 5.0])
def test_quantising_moves_no_weight_by_more_than_a_step(offset: float) -> None:
    weights = (np.random.default_rng(0).normal(size=(8, 3, 32)) + offset).astype(np.float32)
    codes, zeros, scales = gguf_weights.quantise(weights)
    again = (codes.astype(np.float32) - zeros) * scales.astype(np.float32)
    assert np.all(np.abs(again - weights) <= scales)
    spread = np.maximum(weights.max(-1), 0) - np.minimum(weights.min(-1), 0)
    assert np.all(scales[..., 0] <= spread / 255 * 1.01)


def test_quantising_zeros_gives_zeros() -> None:
    codes, zeros, scales = gguf_weights.quantise(np.zeros((1, 1, 32), np.float32))
    assert np.all(codes == zeros)
    assert np.all(scales > 0)


def test_a_later_token_changes_no_earlier_logits(tmp_path: Path, write_gguf: Write) -> None:
    forward = GgufForward(GgufFile(write_gguf(tmp_path / "tiny.gguf")))
    changed = PROBES.copy()
    changed[:, -1] = (changed[:, -1] - 2) % 250 + 3
    one, other = forward.logits(PROBES), forward.logits(changed)
    np.testing.assert_allclose(one[:, :-1], other[:, :-1], atol=1e-5)
    assert np.abs(one[:, -1] - other[:, -1]).max() > 0.1


def test_a_text_file_is_no_gguf(tmp_path: Path, add: Add) -> None:
    (tmp_path / "wrong.gguf").write_text("not a model at all, but long enough to look at")
    with pytest.raises(InvalidRequest, match=r"wrong\.gguf is no readable GGUF file"):
        add(tmp_path, tmp_path / "wrong.gguf")
    assert not list(tmp_path.glob("tmp-*"))


def test_a_file_that_openvino_cannot_read_is_one_line(tmp_path: Path, write_gguf: Write, add: Add) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "stablelm")
    with pytest.raises(EngineFault, match=r"OpenVINO cannot read tiny\.gguf: .+") as caught:
        add(tmp_path, path)
    assert "\n" not in caught.value.message


def vocabulary(**changes: object) -> Vocabulary:
    letters = (*byte_letters().values(), "th", "<s>")
    known = {
        "model": "gpt2",
        "splitting": "default",
        "tokens": letters,
        "types": (1,) * 257 + (3,),
        "merges": ("t h",),
        "start": "",
    }
    return Vocabulary(**(known | changes))  # type: ignore[arg-type]


def test_a_text_begins_with_its_start_token_where_the_file_says_so() -> None:
    plain, started = gguf_tokenizer.build(vocabulary(), {}), gguf_tokenizer.build(vocabulary(start="<s>"), {})
    assert plain.encode("th").tokens == ["th"]
    assert started.encode("th").tokens == ["<s>", "th"]
    assert started.encode("th", add_special_tokens=False).tokens == ["th"]


def test_a_tokenizer_that_cuts_otherwise_than_openvinos_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="cuts 'th'"):
        gguf_tokenizer.build(vocabulary(), {"th": [116, 104]})


@pytest.mark.parametrize(
    ("changes", "words"), [({"model": "llama"}, "kind 'llama'"), ({"splitting": "tekken"}, "'tekken'")]
)
def test_unknown_tokenizers_are_refused(changes: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        gguf_tokenizer.build(vocabulary(**changes), {})


@pytest.mark.parametrize(("splitting", "longest"), [("smollm", 1), ("llama-bpe", 3), ("qwen2", 1), ("gpt-2", 6)])
def test_digits_are_cut_as_the_file_names(splitting: str, longest: int) -> None:
    cutter = gguf_tokenizer.build(vocabulary(splitting=splitting), {}).pre_tokenizer
    assert max(len(piece) for piece, _ in cutter.pre_tokenize_str("123456")) == longest
