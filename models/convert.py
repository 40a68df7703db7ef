"""Turns what a source holds into the files of the repository, checked against the source; one function a format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from safetensors import SafetensorError
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from headrace.core.errors import InvalidRequest
from headrace.core.request import Precision
from headrace.models import (
    bert_forward,
    bert_graph,
    check,
    gguf_export,
    gguf_tokenizer,
    gguf_weights,
    onnx_source,
    precisions,
    torch_converter,
)
from headrace.models.environment import Environment
from headrace.models.gguf_file import GgufFile
from headrace.models.gguf_forward import ARCHITECTURES, GgufForward
from headrace.models.graph import Graph
from headrace.models.source import Format, Found, is_decoder, read_json

Stage = Callable[[str], None]
"""Is told the name of the step that begins."""

GRAPH, TOKENIZER, TEMPLATE = "openvino_model.xml", "tokenizer.json", "chat_template.jinja"
PROBE_TOKENS = 12
PROBE_TEXTS = (
    "The capital of France is Paris, and the capital of Italy is Rome, as every child knows.",
    "def add(a, b):\n    return a + b\n\ndef multiply(a, b):\n    return a * b",
)


@dataclass(frozen=True, slots=True)
class Converted:
    """What is known of a converted model beside its files."""

    kind: str
    context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weights: str
    license: str = ""
    check: dict[str, str | int | float] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


def convert(found: Found, folder: Path, home: Path, stage: Stage) -> Converted:
    """Writes graph, tokenizer and template into an empty folder. Raises InvalidRequest or EngineFault, saying why."""
    match found.format:
        case Format.GGUF:
            return _gguf(found.path, folder, stage)
        case Format.BERT:
            return _bert(found.path, folder, stage)
        case Format.OPENVINO | Format.ONNX:
            return _graph(found, folder, onnx_source.environment(home), stage)
        case Format.DECODER:
            return _decoder(found.path, folder, torch_converter.environment(home), stage)


Check = dict[str, str | int | float]


def convert_variants(
    found: Found, folder: Path, home: Path, wanted: Sequence[Precision], stage: Stage
) -> dict[Precision, Check]:
    """Writes the decoder in other precisions beside its own graph, which is in `folder` with its tokenizer.

    Returns how each was checked. Raises InvalidRequest where the source does not hold the model's whole weights.
    """
    precisions.check_variants(wanted)
    probes = _probes(Tokenizer.from_file(str(folder / TOKENIZER)))
    work = folder.parent / "whole"
    stage("convert the variants")
    match found.format:
        case Format.GGUF:
            file, whole = GgufFile(found.path), work / GRAPH
            if file.architecture not in ARCHITECTURES:
                raise InvalidRequest(f"no variants are made of {file.architecture}", field="precision")
            work.mkdir()
            gguf_weights.whole(file, folder / GRAPH, whole)
            expected = list(GgufForward(file).logits(np.asarray(probes)))
        case Format.DECODER:
            torch = torch_converter.environment(home)
            _install(torch, stage)
            expected, whole = torch_converter.export(torch, found.path, work, probes), work / "whole" / GRAPH
        case _:
            raise InvalidRequest(
                "variants are made of decoders from GGUF and safetensors; an encoder's precision is chosen when it is "
                "loaded (encoder.precision), a graph is kept as it is",
                field="precision",
            )
    made: dict[Precision, Check] = {}
    for precision in wanted:
        stage(f"check {precision.name.lower()}")
        target = folder / precision.name.lower() / GRAPH
        made[precision] = _measured("the source", precisions.write(whole, target, precision, probes, expected))
    return made


def _gguf(path: Path, folder: Path, stage: Stage) -> Converted:
    stage("convert")
    file = GgufFile(path)
    work = folder.parent / "export"
    work.mkdir()
    tokenizer = gguf_tokenizer.build(file.vocabulary, gguf_export.export(path, work))
    restored = gguf_weights.restore(file, work / GRAPH)
    for name in (GRAPH, "openvino_model.bin"):
        (work / name).rename(folder / name)
    tokenizer.save(str(folder / TOKENIZER))
    if template := file.value("tokenizer.chat_template", ""):
        (folder / TEMPLATE).write_text(template, encoding="utf-8")
    stage("check")
    graph = Graph(folder / GRAPH)
    probes = _probes(tokenizer)
    actual = graph.outputs(probes)
    if file.architecture in ARCHITECTURES:
        agreement = check.compare(list(GgufForward(file).logits(np.asarray(probes))), actual, check.QUANTISED_DECODER)
        checked = _measured("a float32 forward pass over the GGUF file's weights", agreement)
    else:
        check.check_sane(actual)
        checked = _sanity_only()
    return Converted(
        kind="decoder",
        context_tokens=file.context_tokens,
        vocab_size=graph.output_size or len(file.vocabulary.tokens),
        eos_token_ids=file.eos_token_ids,
        weights=f"{file.weights}, {restored} matrices as u8" if restored else file.weights,
        license=str(file.value("general.license", "")),
        check=checked,
    )


def _bert(source: Path, folder: Path, stage: Stage) -> Converted:
    stage("convert")
    config = read_json(source / "config.json")
    _want_mean_pooling(source)
    shape = bert_graph.BertShape.of(config)
    weights = _load_bert(source)
    ov.save_model(bert_graph.build(weights, shape), folder / GRAPH, compress_to_fp16=False)
    tokenizer = copy_texts(source, folder)
    stage("check")
    probes = _probes(tokenizer)
    expected = [
        bert_forward.hidden_states(weights, probe, shape.num_layers, shape.num_heads, shape.epsilon) for probe in probes
    ]
    agreement = check.compare(expected, Graph(folder / GRAPH).outputs(probes), check.EXACT)
    labels = bert_graph.labels(weights, config)
    if labels:
        ov.save_model(bert_graph.build(weights, shape, head=True), folder / GRAPH, compress_to_fp16=False)
        wanted = [bert_forward.scores(weights, hidden) for hidden in expected]
        check.same_scores(wanted, Graph(folder / GRAPH).outputs(probes))
    return Converted(
        labels=labels,
        kind="encoder",
        context_tokens=_encoder_context(source, config),
        vocab_size=int(config["vocab_size"]),
        eos_token_ids=(),
        weights="F32",
        check=_measured("a forward pass in numpy over the same weights", agreement),
    )


def _graph(found: Found, folder: Path, runtime: Environment, stage: Stage) -> Converted:
    """A graph that is there already, or an ONNX encoder, which is compared with what ONNX Runtime computes of it."""
    stage("convert")
    texts = next((path.parent for path in found.files if path.name == TOKENIZER), found.path.parent)
    config = read_json(texts / "config.json")
    if found.format is Format.ONNX and is_decoder(config):
        raise InvalidRequest(
            "a decoder is not taken from ONNX: add its safetensors, GGUF or OpenVINO IR instead", field="source"
        )
    try:
        model = ov.Core().read_model(found.path)
    except RuntimeError as error:
        raise InvalidRequest(
            f"OpenVINO cannot read {found.path.name}: {str(error).strip().splitlines()[-1]}"
        ) from error
    ov.save_model(model, folder / GRAPH, compress_to_fp16=False)
    tokenizer = copy_texts(texts, folder)
    graph, probes = Graph(folder / GRAPH), _probes(tokenizer)
    if found.format is Format.ONNX:
        _install(runtime, stage)
        stage("check")
        expected = onnx_source.outputs(runtime, found.path, folder.parent / "runtime", probes)
        checked = _measured("ONNX Runtime", check.compare(expected, graph.outputs(probes), check.EXACT))
    else:
        stage("check")
        check.check_sane(graph.outputs(probes))
        checked = _sanity_only()
    if graph.kind == "encoder":
        _want_mean_pooling(texts)
    return Converted(
        kind=graph.kind,
        context_tokens=_encoder_context(texts, config) if graph.kind == "encoder" else decoder_context(config),
        vocab_size=int(config["vocab_size"]) if graph.kind == "encoder" else graph.output_size or config["vocab_size"],
        eos_token_ids=eos_token_ids(texts, config) if graph.kind == "decoder" else (),
        weights="as in the source",
        check=checked,
    )


def _decoder(source: Path, folder: Path, torch: Environment, stage: Stage) -> Converted:
    config = read_json(source / "config.json")
    context_tokens = decoder_context(config)
    tokenizer = copy_texts(source, folder)
    probes = _probes(tokenizer)
    _install(torch, stage)
    stage("convert")
    work = folder.parent / "export"
    expected = torch_converter.export(torch, source, work, probes)
    for name in (GRAPH, "openvino_model.bin"):
        (work / name).rename(folder / name)
    stage("check")
    graph = Graph(folder / GRAPH)
    check.compare(expected, Graph(work / "whole" / GRAPH).outputs(probes), check.EXACT)
    agreement = check.compare(expected, graph.outputs(probes), check.COMPRESSED_DECODER)
    return Converted(
        kind="decoder",
        context_tokens=context_tokens,
        vocab_size=graph.output_size or int(config["vocab_size"]),
        eos_token_ids=eos_token_ids(source, config),
        weights="int8",
        check=_measured("transformers' forward pass in float32", agreement),
    )


def _install(environment: Environment, stage: Stage) -> None:
    if not environment.ready:
        stage("install the converter")
        environment.install()


def _load_bert(source: Path) -> dict[str, bert_forward.Float32]:
    """The weights in float32 by their names in BertModel, whatever head they were saved under."""
    weights: dict[str, bert_forward.Float32] = {}
    try:
        for path in sorted(source.glob("*.safetensors")):
            weights |= {name: tensor.astype(np.float32) for name, tensor in load_file(path).items()}
    except (SafetensorError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the safetensors cannot be read: {error}", field="source") from error
    return {name.removeprefix("bert."): tensor for name, tensor in weights.items()}


def copy_texts(source: Path, folder: Path) -> Tokenizer:
    """Takes tokenizer and chat template over; the serving side pads and truncates, so the tokenizer must not."""
    try:
        tokenizer = Tokenizer.from_file(str(source / TOKENIZER))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidRequest(f"{TOKENIZER} beside the model cannot be read: {error}", field="source") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(folder / TOKENIZER))
    if template := _chat_template(source):
        (folder / TEMPLATE).write_text(template, encoding="utf-8")
    return tokenizer


def _chat_template(source: Path) -> str:
    if (source / TEMPLATE).is_file():
        return (source / TEMPLATE).read_text(encoding="utf-8")
    config = read_json(source / "tokenizer_config.json") if (source / "tokenizer_config.json").is_file() else {}
    template = config.get("chat_template") or ""
    if isinstance(template, list):  # several named ones
        template = next((each["template"] for each in template if each["name"] == "default"), "")
    return str(template)


def _probes(tokenizer: Tokenizer) -> list[list[int]]:
    probes = [tokenizer.encode(text).ids[:PROBE_TOKENS] for text in PROBE_TEXTS]
    if any(len(probe) < PROBE_TOKENS for probe in probes):
        raise InvalidRequest(f"the tokenizer makes fewer than {PROBE_TOKENS} tokens of a sentence", field="source")
    return probes


def _want_mean_pooling(source: Path) -> None:
    path = source / "1_Pooling" / "config.json"
    if path.is_file() and not read_json(path).get("pooling_mode_mean_tokens"):
        raise InvalidRequest(
            "the encoder does not pool by the mean of its tokens, the only pooling served", field="source"
        )


def _encoder_context(source: Path, config: dict[str, Any]) -> int:
    """Sentence-transformers models are cut shorter than their positions reach."""
    path = source / "sentence_bert_config.json"
    limits = [config["max_position_embeddings"]]
    if path.is_file() and (limit := read_json(path).get("max_seq_length")):
        limits.append(limit)
    return int(min(limits))


def decoder_context(config: dict[str, Any]) -> int:
    for key in ("max_position_embeddings", "n_positions", "n_ctx"):
        if config.get(key):
            return int(config[key])
    raise InvalidRequest("config.json does not say how long a context the model takes", field="source")


def eos_token_ids(source: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Of generation_config.json, which knows the end of a turn, before config.json."""
    path = source / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    values: Sequence[int] = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(values)


def _measured(against: str, agreement: check.Agreement) -> dict[str, str | int | float]:
    return {
        "against": against,
        "positions": PROBE_TOKENS * len(PROBE_TEXTS),
        "least_correlation": round(agreement.correlation, 6),
        "same_top": round(agreement.top1, 4),
    }


def _sanity_only() -> dict[str, str | int | float]:
    return {"against": "nothing: outputs are finite, vary, and differ between inputs"}
