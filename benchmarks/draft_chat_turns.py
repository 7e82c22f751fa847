"""How long a draft node takes to its first draft in each turn of a chat, with and without what it
keeps of ended sessions (`--prefix-sessions`): the real assistant, on the cores of this machine.

In the process itself, without a target: each turn says the next words of a text, as a target would.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from anydraft.bench.recordings import read_recordings
from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt
from benchmarks._common import MODEL, Findings, run_script
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.kept_prefixes import KeptPrefixes
from draft_node.load import DraftSettings, load_onnx

_TEXT = Path(__file__).parent / "recordings" / "greedy.jsonl"
_TURNS = 10
_QUESTION_WORDS, _ANSWER_WORDS = 60, 120
_WORDS_A_STEP = 3
_MAX_DRAFT = 32


def words() -> Iterator[str]:
    """Of the recorded prompts, without end."""
    while True:
        for recording in read_recordings(_TEXT):
            yield from recording.prompt.split()


def first_drafts_ms(drafter: AssistantDrafter, turns: int) -> list[float]:
    """Of each turn of one chat: from when the session is opened until something is drafted."""
    text = words()
    messages: list[ChatMessage] = []
    taken_ms = []
    for _ in range(turns):
        question = " ".join(next(text) for _ in range(_QUESTION_WORDS))
        messages.append(ChatMessage(role="user", content=question))
        answer = [next(text) for _ in range(_ANSWER_WORDS)]
        tree = TextTree(max_pieces=_MAX_DRAFT, max_bytes=65536)
        started = time.perf_counter()
        stream = drafter.open(Prompt(messages=ChatMessages(messages=messages)))
        while not tree.num_pieces and not stream.idle:
            stream.grow(tree, _MAX_DRAFT)
        taken_ms.append((time.perf_counter() - started) * 1e3)
        for at in range(0, len(answer), _WORDS_A_STEP):
            said = (" " if at else "") + " ".join(answer[at : at + _WORDS_A_STEP])
            tree.commit(said.encode())
            stream.commit(said, turn_ms=0.0)
            stream.grow(tree, _MAX_DRAFT - tree.num_pieces)
        stream.close()
        messages.append(ChatMessage(role="assistant", content=" ".join(answer)))
    return taken_ms


def measure(is_short: bool) -> Findings:
    engine, tokenizer = load_onnx(MODEL, DraftSettings(model=MODEL, threads=1))
    chats = 1 if is_short else 3
    found: dict[str, list[list[float]]] = {"without": [], "with": []}
    for _ in range(chats):
        for name, limit in (("without", 0), ("with", 4)):
            prefixes = KeptPrefixes(limit) if limit else None
            drafter = AssistantDrafter(engine, tokenizer, prefixes=prefixes)
            found[name].append(first_drafts_ms(drafter, _TURNS))
    medians = {name: _medians(runs) for name, runs in found.items()}
    return {
        "engine": engine.description,
        "chats": chats,
        "question_words": _QUESTION_WORDS,
        "answer_words": _ANSWER_WORDS,
        "first_draft_ms_by_turn": medians,
        "turn_ten_without_over_with": round(medians["without"][-1] / medians["with"][-1], 2),
    }


def _medians(runs: Sequence[Sequence[float]]) -> list[float]:
    """Of each turn."""
    return [round(statistics.median(turn), 1) for turn in zip(*runs, strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
