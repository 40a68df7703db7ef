"""An encoder's graph rewritten so that a row may hold several texts: they do not attend to each other.

Known are graphs as `headrace.models.bert_graph` builds them: one mask for all attentions, positions cut from a table.
Any other is left as it is, and its texts have a row each.
"""

import numpy as np
import openvino as ov
from openvino import opset13 as op

SEGMENTS = "segment_ids"
POSITIONS = "position_ids"


def pack_rows(model: ov.Model) -> bool:
    """Gives the model inputs SEGMENTS and POSITIONS [B, T] i64 in place of its mask; False: nothing was changed.

    Tokens attend where their segments are equal; 0 is padding. A position counts from 0 in its own text.
    """
    nodes = model.get_ordered_ops()
    masks = [each for each in model.get_parameters() if "attention_mask" in each.output(0).get_names()]
    attentions = [each for each in nodes if each.get_type_name() == "ScaledDotProductAttention"]
    biases = {each.input_value(3).get_node().get_friendly_name() for each in attentions if each.get_input_size() == 4}
    tables = [each for each in nodes if each.get_type_name() == "Slice" and _is_table(each.input_value(0).get_node())]
    masked = all(each.get_input_size() == 4 for each in attentions)
    if len(masks) != 1 or len(biases) != 1 or len(tables) != 1 or not masked:
        return False
    segments = masks[0]
    segments.output(0).set_names({SEGMENTS})
    alike = op.equal(op.unsqueeze(segments, op.constant([1, 3])), op.unsqueeze(segments, op.constant([1, 2])))
    bias = op.select(alike, op.constant(np.float32(0)), op.constant(np.finfo(np.float32).min))
    for attention in attentions:
        attention.input(3).replace_source_output(bias.output(0))
    positions = op.parameter([-1, -1], ov.Type.i64, name=POSITIONS)
    positions.output(0).set_names({POSITIONS})
    placed = op.gather(tables[0].input_value(0), positions, op.constant(0, ov.Type.i64))
    for reader in list(tables[0].output(0).get_target_inputs()):
        reader.replace_source_output(placed.output(0))
    model.add_parameters([positions])
    model.validate_nodes_and_infer_types()
    return True


def _is_table(node: ov.Node) -> bool:
    return node.get_type_name() == "Constant" and len(node.get_output_shape(0)) == 2
