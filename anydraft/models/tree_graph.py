"""Teaches an exported decoder to evaluate several nodes of a tree in one pass.

onnxruntime-genai's builder writes a chain: every token sees all before it. Its GroupQueryAttention
can do more when it is told more; `tree_inputs` says what.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anydraft.models.tree_inputs import (
    ATTENTION_BIAS,
    LOGITS_POSITIONS,
    POSITION_IDS,
    WINDOW_BIAS,
    WINDOW_KEY,
)

_POSITION_INPUT, _BIAS_INPUT = 9, 10
"""Which inputs of GroupQueryAttention these are."""
_HEADS = ("MatMul", "MatMulNBits", "Gemm")


def add_tree_inputs(decoder: Path) -> bool:
    """Rewrite the graph in the file `decoder`; its weights, in a file beside it, are not touched.

    False, and nothing is written, where the graph is not made of what this can change: it then
    stays a chain.
    """
    import onnx

    model = onnx.load(decoder, load_external_data=False)
    attentions = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    windows = {window for node in attentions if (window := _window(node))}
    head = _head(model.graph)
    if not attentions or len(windows) > 1 or head is None or not _is_plain(model.graph, attentions):
        return False
    biases = dict.fromkeys(_connect(node) for node in attentions)
    _keep_some_logits(model.graph, head)
    _declare(model.graph, biases)
    for window in windows:
        model.metadata_props.add(key=WINDOW_KEY, value=str(window))
    onnx.save(model, decoder)
    return True


def _is_plain(graph: Any, attentions: list[Any]) -> bool:
    """Whether nothing of what is added is there already."""
    names = {port.name for port in graph.input}
    places = (_POSITION_INPUT, _BIAS_INPUT)
    filled = any(
        node.input[place] for node in attentions for place in places if len(node.input) > place
    )
    return not filled and not names & {POSITION_IDS, ATTENTION_BIAS, LOGITS_POSITIONS}


def _connect(attention: Any) -> str:
    """Gives it the inputs that it has not got; returns the name of its bias."""
    attention.input.extend([""] * (_BIAS_INPUT + 1 - len(attention.input)))
    bias = ATTENTION_BIAS if _window(attention) is None else WINDOW_BIAS
    attention.input[_POSITION_INPUT], attention.input[_BIAS_INPUT] = POSITION_IDS, bias
    for attribute in attention.attribute:
        if attribute.name == "local_window_size":
            attribute.i = -1
    return bias


def _keep_some_logits(graph: Any, head: Any) -> None:
    """Nobody asks what follows the tokens inside a prompt, and the head is a sixth of what reading
    one costs."""
    from onnx import helper

    hidden = head.input[0]
    kept = f"{hidden}/kept"
    gather = helper.make_node("Gather", [hidden, LOGITS_POSITIONS], [kept], name=kept, axis=1)
    head.input[0] = kept
    graph.node.insert(list(graph.node).index(head), gather)
    for output in graph.output:
        if output.name == "logits":
            output.type.tensor_type.shape.dim[1].dim_param = "kept"


def _declare(graph: Any, biases: dict[str, None]) -> None:
    from onnx import TensorProto, helper

    scores: list[str | int | None] = ["batch_size", 1, "sequence_length", "total_sequence_length"]
    graph.input.extend(
        [
            helper.make_tensor_value_info(
                POSITION_IDS, TensorProto.INT64, ["batch_size", "sequence_length"]
            ),
            helper.make_tensor_value_info(LOGITS_POSITIONS, TensorProto.INT64, ["kept"]),
            *(helper.make_tensor_value_info(bias, TensorProto.FLOAT, scores) for bias in biases),
        ]
    )


def _head(graph: Any) -> Any | None:
    """The last matrix product, from whose result the logits are made token by token."""
    makers = {output: node for node in graph.node for output in node.output}
    node = makers.get("logits")
    while node is not None and node.op_type not in _HEADS:
        node = makers.get(node.input[0]) if node.input else None
    return node


def _window(attention: Any) -> int | None:
    """How many tokens it sees; None for all."""
    sizes = [a.i for a in attention.attribute if a.name == "local_window_size" and a.i > 0]
    return sizes[0] if sizes else None
