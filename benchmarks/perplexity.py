"""How well a loaded variant of a model predicts a fixed text: what a cheaper precision costs in quality."""

import numpy as np

from headrace.executor.engines.protocol import Engine, Int64, StepPlan

TEXT = """A mill stands where the valley narrows. Above it, a low wall of stone holds the stream back until the pond is
full, and from the pond a channel runs along the hillside to the wheel. The channel is called the headrace. It has one
task, to bring the wheel as much water as it can use, no more and no less, at any hour of the day.

The miller learned early that the wheel does not care how the water was gathered. A bucket poured at the right moment
turns it as well as a river does. What it cannot bear is to stand dry and then be flooded. When the farmers came all at
once, on the day before the market, he let the pond rise during the night and opened the gate by the width of two
fingers before the sun was up. When only one of them came, he opened it by the width of one, and the stone turned slowly
and ground the flour fine.

In the third year a sawmill was built below, and the two shared the stream. At first there were quarrels. The saw wanted
its water in long pulls, because a log that is left half cut will split; the millstone wanted it steady, because flour
that is ground in haste turns warm and spoils. They agreed in the end that the saw might have the water whenever a log
lay on the bench, and that the mill should have whatever was left, but never less than a tenth, so that the stone should
not stop. Neither of them had to wait for long, and by the end of the summer both did more work than either had done
alone.

The children of the village used to ask how much water there was in the stream. The miller would take them up to the
wall and show them a post with marks cut into it. "This much," he said, "and it is always enough, as long as nobody asks
for tomorrow's water today." Then he would lift the gate, and they would run beside the channel and try to reach the
wheel before the water did."""


def perplexity(engine: Engine, token_ids: Int64) -> float:
    """Of the tokens [T] after the first, each given all before it, put in as one chunk."""
    spec, length = engine.spec, len(token_ids)
    num_dummies, num_blocks = spec.min_rows - 1, -(-length // spec.block_tokens)
    dummy_blocks = spec.num_blocks - 1 - np.arange(num_dummies)
    output = engine.forward(
        StepPlan(
            token_ids=np.concatenate([token_ids, np.ones(num_dummies, np.int64)]),
            past_lens=np.zeros(spec.min_rows, np.int32),
            subsequence_begins=np.array([0, *range(length, length + num_dummies + 1)], np.int32),
            block_indices=np.concatenate([np.arange(num_blocks), dummy_blocks]).astype(np.int32),
            block_indices_begins=np.array([0, *range(num_blocks, num_blocks + num_dummies + 1)], np.int32),
            wanted_tokens=np.arange(length - 1, dtype=np.int64),
        )
    )
    losses = []
    for row, token_id in enumerate(token_ids[1:].tolist()):
        logits = output.logits(row).astype(np.float64)
        best = logits.max()
        losses.append(best + np.log(np.exp(logits - best).sum()) - logits[token_id])
    return float(np.exp(np.mean(losses)))
