"""`python -m draft_node.simulated`: a draft node with an assistant for benchmarks.

Takes the flags of `anydraft-draft`, and a few of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anydraft.errors import AnydraftError, InvalidRequestError
from anydraft.extras import needs_extra
from anydraft.flags import EXIT_BAD_INPUT, number
from anydraft.rpc.loading import end_process
from anydraft.rpc.logs import set_up_logging
from draft_node.__main__ import parser as node_parser
from draft_node.__main__ import settings_of

if TYPE_CHECKING:
    from anydraft.text.tokenizer import TextTokenizer
    from draft_node.engines.base import AssistantEngine
    from draft_node.load import DraftSettings


@dataclass(frozen=True, slots=True)
class Simulation:
    piece_ms: float | None
    """Of a pass; None for the real assistant's own time."""
    choices: Path | None
    """The real assistant's memory, where it is simulated and not of no use."""
    notes: Path | None
    """Where it writes what it lacked."""
    useless: bool

    def __post_init__(self) -> None:
        """Raises InvalidRequestError naming the flag that is wrong."""
        if self.piece_ms is None and not self.useless:
            raise _invalid("nothing is simulated: give --piece-ms or --useless")
        if self.piece_ms is not None and not self.useless and self.choices is None:
            raise _invalid("--piece-ms needs a memory: name a file with --choices")


def parser() -> argparse.ArgumentParser:
    p = node_parser()
    flag = p.add_argument
    flag("--piece-ms", type=number(0, above=True), metavar="MS", help="a pass takes this long")
    flag("--choices", type=Path, metavar="FILE", help="what the real assistant chose; grows")
    flag("--notes", type=Path, metavar="FILE", help="what was not known in an answer; grows")
    flag("--useless", action="store_true", help="every choice is nonsense")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    set_up_logging(args.log_level)
    try:
        with needs_extra("draft"):
            simulation = Simulation(args.piece_ms, args.choices, args.notes, args.useless)
            # What an oracle lacked is asked for when no session holds a state any more.
            settings = replace(settings_of(args), prefix_sessions=0)
            return end_process(asyncio.run(_serve(settings, simulation, args)))
    except AnydraftError as error:
        print(f"simulated-draft: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return 130


async def _serve(settings: DraftSettings, simulation: Simulation, args: argparse.Namespace) -> int:
    from draft_node.lifecycle import DraftNode
    from draft_node.load import load_drafter

    node = DraftNode(
        args.verify,
        args.listen,
        max_draft=settings.max_draft,
        max_sessions=args.max_sessions,
    )
    try:
        await node.start()
        load_engine = partial(load_simulated, simulation)
        await node.run_until_signal(
            partial(load_drafter, settings, load_engine), args.grace, meanwhile=None
        )
    finally:
        await node.stop()
    return 0


def load_simulated(
    simulation: Simulation, model: str, settings: DraftSettings
) -> tuple[AssistantEngine, TextTokenizer]:
    """The engine, and the tokenizer of the real assistant. Raises as `load_onnx` does."""
    from anydraft.models import resolve_assistant_files
    from anydraft.text.tokenizer import TextTokenizer
    from draft_node.load import load_onnx
    from draft_node.simulated.choices_file import ChoicesFile
    from draft_node.simulated.engine import SimulatedEngine
    from draft_node.simulated.facts import EngineFacts
    from draft_node.simulated.notes import Notes
    from draft_node.simulated.oracles import NonsenseOracle, Oracle, RecordedOracle
    from draft_node.simulated.pace import Pace
    from draft_node.simulated.useless_engine import UselessEngine

    if simulation.piece_ms is None:
        engine, tokenizer = load_onnx(model, settings)
        return UselessEngine(engine), tokenizer
    files = resolve_assistant_files(model, precision=settings.precision)
    tokenizer = TextTokenizer.from_folder(files.folder)
    oracle: Oracle
    if simulation.useless or simulation.choices is None:
        size = tokenizer.vocab_size
        context = settings.max_context_tokens
        oracle = NonsenseOracle(EngineFacts("nonsense", context, size, frozenset()))
    else:
        file, notes = ChoicesFile(simulation.choices), Notes(simulation.notes)
        oracle = RecordedOracle(file, lambda: load_onnx(model, settings)[0], notes)
    return SimulatedEngine(oracle, Pace(simulation.piece_ms)), tokenizer


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(problem, reason="INVALID_SETTINGS")


if __name__ == "__main__":
    sys.exit(main())
