"""From recorded answers to a `ServedModel` whose target is simulated."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from anydraft.bench.recordings import Recording, read_recordings
from anydraft.errors import InvalidRequestError
from anydraft.models import resolve_model
from anydraft.models.loading import load_tokenizer
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt
from verify_node.runners.calibration import calibrate
from verify_node.scheduler import Scheduler, SchedulerLimits
from verify_node.served_model import ServedModel
from verify_node.simulated.runner import SimulatedRunner
from verify_node.simulated.script import Script, Scripts
from verify_node.simulated.step_time import StepTime
from verify_node.target import TargetFacts

_log = logging.getLogger(__name__)

_CONTEXT_TOKENS = 32768
_KV_TOKENS = 10**6
"""No memory is behind them."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    model: str
    """Only its tokenizer is loaded."""
    answers: Path
    time: StepTime
    name: str | None = None
    max_sessions: int = 64
    max_step_tokens: int = 512


def load(options: SimulationOptions) -> ServedModel:
    """Raises the errors of `anydraft.models`, and InvalidRequestError for answers that are not this
    model's."""
    files = resolve_model(options.model)
    of_transformers = load_tokenizer(files)
    tokenizer = TextTokenizer.from_transformers(of_transformers)
    recordings = read_recordings(options.answers)
    size = tokenizer.vocab_size
    _check(recordings, files.name, size)
    scripts = Scripts([_script(recording, tokenizer) for recording in recordings])
    runner = SimulatedRunner(scripts, options.time, size)
    _log.info("measuring what a step costs")
    cost = calibrate(runner, size)
    facts = TargetFacts(
        description=f"simulated, {options.time.step_ms:g} ms a step, {len(recordings)} answers",
        dtype="float32",
        context_tokens=_CONTEXT_TOKENS,
        vocabulary_size=size,
        fingerprint=hashlib.blake2b(options.answers.read_bytes(), digest_size=16).hexdigest(),
    )
    limits = SchedulerLimits(
        kv_tokens=_KV_TOKENS,
        max_sessions=options.max_sessions,
        max_step_tokens=options.max_step_tokens,
    )
    target = Scheduler(runner, cost, facts, limits)
    make_config: Any = transformers.GenerationConfig
    ends = make_config(eos_token_id=_eos_ids(recordings, of_transformers))
    name = options.name or files.name
    return ServedModel(name, target, tokenizer, ends, _CONTEXT_TOKENS)


def _check(recordings: Sequence[Recording], model: str, size: int) -> None:
    for recording in recordings:
        if recording.target not in ("", model):
            raise InvalidRequestError(
                f"the answers were recorded with {recording.target}, not {model}: give that as "
                "the target, or record new ones with anydraft bench --record",
                reason="BENCH_FILE_INVALID",
            )
        if max(recording.ids) >= size:
            raise InvalidRequestError(
                f"the answers hold the id {max(recording.ids)}, which {model} does not have: "
                "give the target that they were recorded with",
                reason="BENCH_FILE_INVALID",
            )


def _script(recording: Recording, tokenizer: TextTokenizer) -> Script:
    message = ChatMessage(role="user", content=recording.prompt)
    prompt = Prompt(messages=ChatMessages(messages=[message]))
    return Script(tuple(tokenizer.encode_prompt(prompt)), recording.ids)


def _eos_ids(recordings: Sequence[Recording], tokenizer: Any) -> list[int]:
    """What ended recorded answers, and what the tokenizer says."""
    ends = {recording.ids[-1] for recording in recordings if recording.ended}
    if tokenizer.eos_token_id is not None:
        ends.add(int(tokenizer.eos_token_id))
    return sorted(ends)
