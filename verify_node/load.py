"""From a model's name to a `ServedModel`: load, prove, pack, measure, start."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import psutil
import torch
from transformers import PreTrainedModel

from anydraft.errors import InvalidRequestError
from anydraft.models import resolve_model
from anydraft.models.devices import require_device
from anydraft.models.loading import load_dense
from anydraft.text.tokenizer import TextTokenizer
from verify_node.check_defaults import check_defaults
from verify_node.fingerprint import fingerprint
from verify_node.generation_defaults import not_obeyed
from verify_node.runners.calibration import calibrate
from verify_node.runners.context_limit import context_tokens
from verify_node.runners.model_facts import vocabulary_size
from verify_node.runners.packed_linear import pack_linears
from verify_node.runners.proof import choose_runner
from verify_node.runners.reserved_memory import GPU_TOKENS
from verify_node.scheduler import BLOCK_TOKENS, MAX_WAIT_S, MAX_WAITING, Scheduler, SchedulerLimits
from verify_node.served_model import ServedModel
from verify_node.target import TargetFacts

_log = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_KV_MEMORY_SHARE = 0.5
"""Of the memory that is free once the model is loaded."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    model: str
    name: str | None = None
    """What clients ask for; the model's own name when None."""
    dtype: str = "auto"
    """A key of DTYPES, or "auto": fp32 on a CPU, what the checkpoint says on a GPU."""
    device_map: str | None = None
    """As in transformers: "cpu", "cuda:0", "auto" over several GPUs; None picks a GPU if any."""
    trust_remote_code: bool = False
    """Whether code that comes with the model may run."""
    max_context_tokens: int | None = None
    kv_tokens: int | None = None
    """In the memory for keys and values; None: as many as `kv_bytes` holds."""
    kv_bytes: int | None = None
    """None: half of the memory that is free."""
    keeps_prefixes: bool = True
    max_sessions: int = 64
    max_waiting: int = MAX_WAITING
    max_wait_s: float = MAX_WAIT_S
    max_step_tokens: int = 512
    threads: int | None = None


def load(options: LoadOptions) -> ServedModel:
    """Raises the errors of `anydraft.models`, and UnsupportedModelError."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device_map = options.device_map or ("auto" if torch.cuda.is_available() else "cpu")
    dtype = _dtype(options.dtype, device_map)
    require_device(device_map)
    files = resolve_model(options.model)
    model, transformers_tokenizer = load_dense(
        files, dtype=dtype, device_map=device_map, trust_remote_code=options.trust_remote_code
    )
    tokenizer = TextTokenizer.from_transformers(transformers_tokenizer)
    num_ids = vocabulary_size(model)
    tokenizer.check_vocabulary(num_ids)
    check_defaults(model.generation_config, num_ids)
    if ignored := not_obeyed(model.generation_config):
        _log.warning(
            "the model's generation_config asks for %s, which this node does not do: answers are "
            "those of the model without (docs/generation_config.md)",
            ", ".join(ignored),
        )
    _log.info("proving that %s is served exactly", files.name)
    runner = choose_runner(model)
    mark = fingerprint(model, runner.name)
    num_packed = pack_linears(model)
    _log.info("measuring what a step costs")
    cost = calibrate(runner, num_ids)
    context = context_tokens(model, options.max_context_tokens)
    facts = TargetFacts(
        description=f"{runner.name} {str(model.dtype).removeprefix('torch.')} on {model.device}"
        + (f", {num_packed} packed layers" if num_packed else ""),
        dtype=str(model.dtype).removeprefix("torch."),
        context_tokens=context,
        vocabulary_size=num_ids,
        fingerprint=mark,
    )
    limits = SchedulerLimits(
        kv_tokens=options.kv_tokens or _kv_tokens(model, options.kv_bytes, context),
        max_sessions=options.max_sessions,
        max_step_tokens=options.max_step_tokens,
        max_waiting=options.max_waiting,
        max_wait_s=options.max_wait_s,
        block_tokens=_block_tokens(model),
        keeps_prefixes=options.keeps_prefixes,
    )
    _log.info(
        "target ready: %s, context %d, KV %d tokens", facts.description, context, limits.kv_tokens
    )
    target = Scheduler(runner, cost, facts, limits)
    name = options.name or files.name
    return ServedModel(name, target, tokenizer, model.generation_config, context)


def _dtype(name: str, device_map: str) -> torch.dtype | str:
    if name == "auto":
        return torch.float32 if device_map == "cpu" else "auto"
    if name not in DTYPES:
        raise InvalidRequestError(
            f"--dtype {name} is unknown. Choose auto, {', '.join(DTYPES)}.",
            reason="PRECISION_UNKNOWN",
        )
    return DTYPES[name]


def _kv_tokens(model: PreTrainedModel, kv_bytes: int | None, context: int) -> int:
    """Whole blocks. Where no budget is set, at least one full context, as far as the model's own
    limit goes."""
    per_token, block_tokens = _bytes_per_token(model), _block_tokens(model)
    if kv_bytes is not None:
        num_blocks = kv_bytes // (per_token * block_tokens)
        if not num_blocks:
            raise InvalidRequestError(
                f"--kv-bytes {kv_bytes} holds no block of {block_tokens} tokens, each of which "
                f"takes {per_token} bytes of this model. Give it more.",
                reason="KV_TOO_SMALL",
            )
        return num_blocks * block_tokens
    return max(int(_free_bytes(model) * _KV_MEMORY_SHARE / per_token), context)


def _block_tokens(model: PreTrainedModel) -> int:
    """As caches take memory: on a GPU in larger pieces."""
    return BLOCK_TOKENS if model.device.type == "cpu" else GPU_TOKENS


def _free_bytes(model: PreTrainedModel) -> int:
    if model.device.type == "cuda":
        return sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    return int(psutil.virtual_memory().available)


def _bytes_per_token(model: PreTrainedModel) -> int:
    """Keys and values of all layers, as the config describes them."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * model.dtype.itemsize)
