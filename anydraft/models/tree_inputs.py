"""What our exports are asked beyond what others are: several nodes of a tree in one pass.

`tree_graph` adds these inputs, and the draft node's ONNX engine fills them:

    position_ids      [1, new] int64: the place of each token in its own path
    attention_bias    [1, 1, new, total] float: what is added to each attention score; 0 for the
                      tokens of its own path, MASKED for all others
    logits_positions  [kept] int64: the new tokens for which logits are made, in that order

Layers that slide get a bias of their own, `window_bias`, of the same shape: their operator counts
the window in slots of the cache, where the branches of a tree lie side by side, so the window is
taken out of the operator and comes with the bias. Its size stands in the file, as WINDOW_KEY. A
token never sees the slots behind its own.
"""

from __future__ import annotations

POSITION_IDS = "position_ids"
ATTENTION_BIAS = "attention_bias"
WINDOW_BIAS = "window_bias"
LOGITS_POSITIONS = "logits_positions"
WINDOW_KEY = "anydraft.window"
"""In the metadata of the file: how many tokens a sliding layer sees, its own included."""

MASKED = -1e30
"""Not minus infinity, with which a kernel that subtracts the largest score may make NaN."""
