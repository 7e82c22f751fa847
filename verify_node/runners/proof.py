"""The proof, at load, that a runner gives the model's own logits.

transformers has models whose attention a custom function cannot reach, or reaches only in part, and
then the output is silently wrong. So no architecture is trusted by name: a few short random
sessions run through the runner together, in chunks, with junk drafts rolled back in between, and
every logit is compared with a plain pass of the model over each session alone. Windows are narrowed
meanwhile, so that the texts are longer than all of them. Then the same once more with every chunk
as a path of a tree, between branches of junk.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from anydraft.errors import UnsupportedModelError
from verify_node.runners.attention_windows import has_windows, narrowed
from verify_node.runners.base import ModelRunner, Row, SessionCache
from verify_node.runners.model_facts import input_device, vocabulary_size
from verify_node.runners.per_session import PerSessionRunner
from verify_node.runners.ragged import RaggedRunner

_log = logging.getLogger(__name__)

_PROOF_WINDOW_TOKENS = 6
_SCHEDULE = ((5, 1, 9), (4, 7, 1), (1, 3, 3), (1, 1, 1), (8, 2, 6))
"""New tokens of three sessions, step by step: chunks, single steps, all mixed."""
_JUNK_TOKENS = 3
"""Rolled back before each step; in a tree, in front of each true token."""
_NOISE_FACTOR = 8.0
"""How far above the model's own rounding the mean error may lie. A wrong mask lies far beyond."""


def choose_runner(model: PreTrainedModel) -> ModelRunner:
    """The fastest runner that is exact on this model.

    Raises UnsupportedModelError when there is none: an encoder-decoder, recurrent state, or a model
    whose caches do not survive being cut.
    """
    _refuse_by_kind(model)
    with narrowed(model, _PROOF_WINDOW_TOKENS):
        texts = _texts(model)
        plain = [_plain(model, text) for text in texts]
        ragged, careful = RaggedRunner(model), PerSessionRunner(model)
        error = _attempt(ragged, texts, plain, _is_precise(model))
        windows = _windows_took_part(model, texts[0], plain[0])
        allowed = 0.3 * _rounding(model)
        baseline = math.inf
        if error > allowed:
            baseline = _attempt(careful, texts, plain, _is_precise(model))
            allowed = min(_NOISE_FACTOR * baseline, _rounding(model))
        if error <= allowed and windows:
            _log.info("ragged engine proven: error %.1e of the logits' spread", error)
            in_trees = _attempt(ragged, texts, plain, _is_precise(model), in_trees=True)
            # It may round as much more as the chain may against the model itself.
            allowed = max(allowed, min(_NOISE_FACTOR * error, _rounding(model)))
            return _with_or_without_trees(model, ragged, in_trees, allowed)
        if math.isinf(baseline):
            baseline = _attempt(careful, texts, plain, _is_precise(model))
    if baseline <= _rounding(model):
        _log.warning(
            "the ragged engine is not exact on %s (error %.1e of the logits' spread): "
            "running one cache a session, which is slower with several sessions",
            type(model).__name__,
            error,
        )
        return careful
    raise UnsupportedModelError(
        f"{type(model).__name__} does not give its own logits back when its cache is continued and "
        f"cut (error {baseline:.1e} of their spread), so drafts cannot be verified exactly. "
        "Serve another target, or report the architecture.",
        reason="MODEL_NOT_EXACT",
    )


def _with_or_without_trees(
    model: PreTrainedModel, ragged: RaggedRunner, error: float, allowed: float
) -> RaggedRunner:
    if error <= allowed:
        return ragged
    _log.warning(
        "the ragged engine is not exact on trees with %s (error %.1e of the logits' spread): "
        "of every draft, only its best path is checked",
        type(model).__name__,
        error,
    )
    return RaggedRunner(model, takes_trees=False)


def _refuse_by_kind(model: PreTrainedModel) -> None:
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder; anydraft serves decoder-only targets. "
            "Choose a causal language model.",
            reason="MODEL_NOT_A_DECODER",
        )
    if model._is_stateful:
        raise UnsupportedModelError(
            f"{name} keeps recurrent state, which cannot be rolled back when a draft is rejected. "
            "Choose a target whose layers are all attention.",
            reason="MODEL_CANNOT_ROLL_BACK",
        )


def _is_precise(model: PreTrainedModel) -> bool:
    return model.dtype in (torch.float32, torch.float64)


def _rounding(model: PreTrainedModel) -> float:
    """What chunking may change in this precision, as a share of the logits' spread."""
    return 1e-4 if _is_precise(model) else 0.1


def _texts(model: PreTrainedModel) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    size = vocabulary_size(model)
    lengths = [sum(step[session] for step in _SCHEDULE) for session in range(3)]
    return [torch.randint(size, (n,), generator=generator).tolist() for n in lengths]


@torch.inference_mode()
def _plain(model: PreTrainedModel, text: Sequence[int]) -> torch.Tensor:
    device = input_device(model)
    output = model(input_ids=torch.tensor([list(text)], device=device), use_cache=False)
    logits: torch.Tensor = output.logits[0].float()
    return logits


def _attempt(
    runner: ModelRunner,
    texts: Sequence[Sequence[int]],
    plain: Sequence[torch.Tensor],
    precise: bool,
    *,
    in_trees: bool = False,
) -> float:
    """Mean absolute error of a position's logits, as a share of the logits' standard deviation;
    infinite when the runner fails.
    """
    try:
        logits = _replay_in_trees(runner, texts) if in_trees else _replay(runner, texts)
    except (NotImplementedError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        _log.info("%s runner: %s: %s", runner.name, type(error).__name__, error)
        return math.inf
    spread = torch.cat(list(plain)).std().clamp_min(1e-9)
    errors = torch.cat(
        [
            (got.to(want.device) - want).abs().mean(dim=-1) / spread
            for got, want in zip(logits, plain, strict=True)
        ]
    )
    # The worst position where rounding is small: a mask wrong past a window errs there only.
    # In low precision one position may differ honestly (an expert chosen by a near tie), so there
    # the median decides; windows are so narrow that most positions lie past them.
    worst = errors.max() if precise else errors.median()
    return math.inf if worst.isnan() else worst.item()


def _replay(runner: ModelRunner, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The logits of every token of every text, [len(text), vocabulary] each."""
    caches = [runner.new_cache(len(text) + _JUNK_TOKENS) for text in texts]
    done = [0] * len(texts)
    logits: list[list[torch.Tensor]] = [[] for _ in texts]
    for step in _SCHEDULE:
        junk = [
            Row(cache, list(text[:_JUNK_TOKENS]), 1)
            for cache, text in zip(caches, texts, strict=True)
        ]
        runner.forward(junk)
        for cache, length in zip(caches, done, strict=True):
            cache.truncate(length)
        rows = [
            Row(cache, list(text[start : start + n]), n)
            for cache, text, start, n in zip(caches, texts, done, step, strict=True)
        ]
        for index, out in enumerate(runner.forward(rows)):
            logits[index].append(out)
            done[index] += step[index]
    return [torch.cat(parts) for parts in logits]


def _replay_in_trees(runner: ModelRunner, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The same, with each step's tokens as one path of a tree.

    In front of each of them stands a branch of junk, longer than a window by the end of a chunk: a
    window that counts places instead of positions would lose true tokens to it, or let a query see
    what lies too far back.
    """
    caches = [
        runner.new_cache(len(text) + max(map(max, _SCHEDULE)) * _JUNK_TOKENS) for text in texts
    ]
    done = [0] * len(texts)
    logits: list[list[torch.Tensor]] = [[] for _ in texts]
    for step in _SCHEDULE:
        rows, paths = [], []
        for cache, text, start, n in zip(caches, texts, done, step, strict=True):
            row, path = _tree_row(cache, text[start : start + n], text[:_JUNK_TOKENS])
            rows.append(row)
            paths.append(path)
        outs = runner.forward(rows)
        for index, (row, path, out) in enumerate(zip(rows, paths, outs, strict=True)):
            logits[index].append(out[path])
            row.cache.keep(done[index], path)
            done[index] += step[index]
    return [torch.cat(parts) for parts in logits]


def _tree_row(
    cache: SessionCache, tokens: Sequence[int], junk: Sequence[int]
) -> tuple[Row, list[int]]:
    """A row of a tree, and where in it the path of `tokens` lies."""
    ids: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    for token_id in tokens:
        below = path[-1] if path else -1
        for depth, junk_id in enumerate(junk):
            parents.append(len(ids) - 1 if depth else below)
            ids.append(junk_id)
        path.append(len(ids))
        parents.append(below)
        ids.append(token_id)
    return Row(cache, ids, len(ids), parents), path


def _windows_took_part(model: PreTrainedModel, text: Sequence[int], narrow: torch.Tensor) -> bool:
    """Whether the windows can be set, so that the proof did cross them. True without windows."""
    if not has_windows(model) or not _uses_windows(model):
        return True
    with narrowed(model, len(text) + 1):
        wide = _plain(model, text)
    changed = bool((wide - narrow).abs().max() > 0)
    if not changed:
        _log.info("the windows of %s cannot be narrowed for the proof", type(model).__name__)
    return changed


def _uses_windows(model: PreTrainedModel) -> bool:
    kinds = getattr(model.config.get_text_config(), "layer_types", None)
    return set(kinds or ["unknown"]) != {"full_attention"}
