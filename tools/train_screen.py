"""Trains the screen's head from labelled rows, and reports it file by file on rows it was not trained on.

    python tools/train_screen.py --workloads DIR              # train, write the weights, print the table
    python tools/train_screen.py --workloads DIR --report     # print the table of the weights as they are

Wants the extra `train` and the model minilm. The split is fixed (headrace.benchmarks.screening_rows), every draw is
seeded: the same rows give the same weights. --vectors keeps the encoder's output, which takes most of the time.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from headrace.benchmarks.screening_rows import LABELS, ScreeningRow, embedded_rows, screening_rows
from headrace.benchmarks.screening_table import file_table
from headrace.chassis.config import load_settings
from headrace.models.repository import Repository
from headrace.preprocess.screen.encoder import TextWindow, WindowEncoder
from headrace.preprocess.screen.head import WEIGHTS, Head, load_head
from headrace.preprocess.screen.ngrams import NUM_BUCKETS, ngrams

ROOT = Path(__file__).resolve().parent.parent
MAX_WINDOWS = 6
"""Of one text, in training and in the report: its first ones and its last."""
HIDDEN_UNITS, NUM_NETWORKS = 48, 4
FILE_WEIGHTS = {
    "agent_conversation_prompts": 0.5,
    "arena_hard_v0_1": 8.0,
    "arena_hard_v2_0": 8.0,
    "banking77_test": 0.5,
    "belle_eval_zh": 3.0,
    "catqa_zh": 2.0,
    "clinc150_test": 0.5,
    "cmrc2018_dev_zh": 0.5,
    "crosswoz_test_dialogues_zh": 0.5,
    "cvalues_zh": 3.0,
    "deepset_prompt_injections": 3.0,
    "harmbench_text": 2.0,
    "humaneval": 2.0,
    "ifeval": 4.0,
    "jailbreakbench_goals": 2.0,
    "leval_reports": 6.0,
    "mt_bench": 4.0,
    "mt_bench_zh": 4.0,
    "qmsum_test": 6.0,
    "user_oriented_instructions": 4.0,
    "xstest": 20.0,
}
"""What rows count beside 1: small files of the kinds that are easily confused count more, large uniform ones less."""
RECALL_KEPT = {"harm": 0.895, "injection": 0.88}
"""A category's threshold is the highest that still finds so many of its validation rows."""
TOXICITY_OVERBLOCK = 0.005
"""Toxicity is what comments have, not requests, and the comments at hand are hard to tell apart: its threshold is the
lowest that blocks no more of the validation rows that are to pass."""

Float32 = NDArray[np.float32]


class Windows:
    """All rows' windows in one line, with their vectors; `owner` [W] is the row that a window belongs to."""

    def __init__(self, rows: Sequence[ScreeningRow], encoder: WindowEncoder, kept_vectors: Path | None) -> None:
        split = [_bounded(encoder.split(row.text)) for row in rows]
        self.owner = np.repeat(np.arange(len(rows)), [len(windows) for windows in split])
        windows = [window for part in split for window in part]
        self.texts = [window.text for window in windows]
        self.share = np.array([1 / np.sqrt(len(part)) for part in split for _ in part], np.float32)
        self.vectors = _vectors(windows, encoder, kept_vectors)
        self._num_rows = len(rows)

    def row_max(self, scores: Float32) -> Float32:
        """Scores of rows [R, ...] from those of windows [W, ...]: the worst window counts."""
        best = np.full((self._num_rows, *scores.shape[1:]), -np.inf, np.float32)
        np.maximum.at(best, self.owner, scores)
        return best


def _bounded(windows: list[TextWindow]) -> list[TextWindow]:
    return windows if len(windows) <= MAX_WINDOWS else [*windows[: MAX_WINDOWS - 1], windows[-1]]


def _vectors(windows: list[TextWindow], encoder: WindowEncoder, kept: Path | None) -> Float32:
    if kept is not None and kept.exists():
        return np.asarray(np.load(kept), np.float32)
    order = sorted(range(len(windows)), key=lambda index: len(windows[index].token_ids))
    parts = []
    for start in range(0, len(order), 64):
        parts.append(encoder.vectors([windows[index] for index in order[start : start + 64]]))
    vectors = np.concatenate(parts)[np.argsort(order)]
    if kept is not None:
        np.save(kept, vectors.astype(np.float16))
    return vectors


def train(rows: Sequence[ScreeningRow], windows: Windows) -> Head:
    """The head: classifiers from the train part; how they are joined, and thresholds, from the validation part."""
    part = np.array([row.part for row in rows])
    label = np.array([row.label if row.label is not None else "policy" for row in rows])
    weight = np.array([FILE_WEIGHTS.get(row.file, 1.0) for row in rows], np.float32)[windows.owner] * windows.share
    training, of_window = part[windows.owner] == "train", label[windows.owner]
    mean, spread = windows.vectors[training].mean(axis=0), windows.vectors[training].std(axis=0) + 1e-6
    x = ((windows.vectors - mean) / spread).astype(np.float32)
    grams = _sparse(windows.texts)
    linear, deep, by_grams = [], [], []
    for category in LABELS:  # rows of the other categories are no examples of legal ones: left out
        chosen = training & ((of_window == category) | (of_window == ""))
        wanted, weights = of_window[chosen] == category, weight[chosen]
        linear.append(LogisticRegression(C=0.003, max_iter=300).fit(x[chosen], wanted, weights))
        deep.append(_hidden_layers(x[chosen], wanted, weights))
        by_grams.append(LogisticRegression(C=10, max_iter=300).fit(grams[chosen], wanted, weights))
    head = Head(
        name=f"headrace-screen-{WEIGHTS.removesuffix('.npz')}",
        categories=LABELS,
        mean=mean,
        spread=spread,
        dense=np.concatenate([model.coef_ for model in linear]),
        hidden=np.stack([hidden for hidden, _, _ in deep]),
        hidden_bias=np.stack([bias for _, bias, _ in deep]),
        out=np.stack([out for _, _, out in deep]),
        grams=np.concatenate([model.coef_ for model in by_grams]),
        joint=np.zeros((len(LABELS), 4), np.float32),
        thresholds=np.ones(len(LABELS), np.float32),
    )
    logits = np.stack(_logits(head, windows), axis=-1)
    validating = part[windows.owner] == "validation"
    joint = []
    for index, category in enumerate(LABELS):
        chosen = validating & ((of_window == category) | (of_window == ""))
        joined = LogisticRegression(C=1.0).fit(
            logits[chosen, index], of_window[chosen] == category, windows.share[chosen]
        )
        joint.append([*joined.coef_[0], joined.intercept_[0]])
    head = replace(head, joint=np.array(joint, np.float32))
    return replace(head, thresholds=_thresholds(rows, windows.row_max(probabilities(head, windows))))


def _hidden_layers(x: Float32, wanted: NDArray[np.bool_], weights: Float32) -> tuple[Float32, Float32, Float32]:
    """The mean of several networks as one: their units side by side. [D, U], [U], [U]."""
    networks = [
        MLPClassifier(
            (HIDDEN_UNITS,), alpha=3.0, learning_rate_init=5e-4, max_iter=12, batch_size=256, random_state=seed
        ).fit(x, wanted, sample_weight=weights)
        for seed in range(NUM_NETWORKS)
    ]
    hidden = np.concatenate([network.coefs_[0] for network in networks], axis=1)
    bias = np.concatenate([network.intercepts_[0] for network in networks])
    return hidden, bias, np.concatenate([network.coefs_[1][:, 0] for network in networks]) / NUM_NETWORKS


def _logits(head: Head, windows: Windows) -> tuple[Float32, Float32, Float32]:
    parts = [
        head.logits(windows.vectors[start : start + 512], windows.texts[start : start + 512])
        for start in range(0, len(windows.texts), 512)
    ]
    linear, deep, grams = (np.concatenate(part) for part in zip(*parts, strict=True))
    return linear, deep, grams


def probabilities(head: Head, windows: Windows) -> Float32:
    """Of all windows [W, C]."""
    return np.concatenate(
        [
            head.probabilities(windows.vectors[start : start + 512], windows.texts[start : start + 512])
            for start in range(0, len(windows.texts), 512)
        ]
    )


def _thresholds(rows: Sequence[ScreeningRow], scores: Float32) -> Float32:
    label = np.array([row.label if row.label is not None else "policy" for row in rows])
    validating = np.array([row.part == "validation" for row in rows])
    thresholds = []
    for index, category in enumerate(LABELS):
        if category in RECALL_KEPT:
            found = scores[validating & (label == category), index]
            thresholds.append(np.quantile(found, 1 - RECALL_KEPT[category]))
        else:
            legal = scores[validating & (label == ""), index]
            thresholds.append(np.quantile(legal, 1 - TOXICITY_OVERBLOCK))
    return np.array(thresholds, np.float32)


def _sparse(texts: Sequence[str]) -> csr_matrix:
    rows = [ngrams(text) for text in texts]
    starts = np.concatenate([[0], np.cumsum([len(buckets) for buckets, _ in rows])])
    buckets, weights = (np.concatenate(part) for part in zip(*rows, strict=True))
    return csr_matrix((weights, buckets, starts), shape=(len(texts), NUM_BUCKETS))


def save(head: Head, path: Path) -> None:
    """In half precision, which changes no probability by more than a thousandth; what decides stays whole."""
    half = ("dense", "hidden", "grams", "out", "hidden_bias")
    whole = ("mean", "spread", "joint", "thresholds")
    arrays = {name: getattr(head, name).astype(np.float16) for name in half}
    arrays |= {name: getattr(head, name).astype(np.float32) for name in whole}
    np.savez_compressed(path, name=np.array(head.name), categories=np.array(head.categories), **arrays)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=Path, required=True, help="a folder with screening/ and prompts/")
    parser.add_argument("--vectors", type=Path, help="keep the encoder's output in this .npy, or take it from there")
    parser.add_argument("--report", action="store_true", help="train nothing")
    chosen = parser.parse_args()
    rows = screening_rows(chosen.workloads)
    rows += embedded_rows(rows)
    encoder = WindowEncoder(Repository(load_settings().models.home).get("minilm"), 1)
    windows = Windows(rows, encoder, chosen.vectors)
    if not chosen.report:
        save(train(rows, windows), ROOT / "preprocess" / "screen" / "weights" / WEIGHTS)
    head = load_head()
    scores = windows.row_max(probabilities(head, windows))
    found = [bool((row >= head.thresholds).any()) for row in scores]
    print(f"{head.name}: thresholds {dict(zip(head.categories, head.thresholds.round(3).tolist(), strict=True))}")
    print(file_table(rows, found))


if __name__ == "__main__":
    main()
