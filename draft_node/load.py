"""What a draft node is asked to be, and the drafter that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anydraft.errors import FailedPreconditionError, InvalidRequestError
from draft_node.drafters.assistant import (
    DEFAULT_MAX_CONTEXT_TOKENS,
    DEFAULT_MIN_PROBABILITY,
    AssistantDrafter,
)
from draft_node.drafters.base import Drafter
from draft_node.drafters.combined import CombinedDrafter
from draft_node.drafters.kept_prefixes import DEFAULT_PREFIX_SESSIONS, KeptPrefixes
from draft_node.drafters.lookup import AnswerMemory, LookupDrafter
from draft_node.drafting_loop import DEFAULT_MAX_DRAFT

if TYPE_CHECKING:
    from anydraft.text.tokenizer import TextTokenizer
    from draft_node.engines.base import AssistantEngine

    EngineLoader = Callable[[str, "DraftSettings"], tuple[AssistantEngine, TextTokenizer]]

MIN_CONTEXT_TOKENS = 64
"""A window that holds less is no context to draft from."""
ENGINES = ("onnx", "torch", "lookup")


@dataclass(frozen=True, slots=True)
class DraftSettings:
    model: str | None = None
    """A name or folder, as `anydraft.models` understands it; None for the lookup engine."""
    engine: str = "onnx"
    """One of ENGINES; "lookup" is prompt lookup alone."""
    precision: str = "int4"
    """Of the ONNX file, where there are several or it is exported."""
    threads: int | None = None
    """Cores that drafting may use; None for all that the process may."""
    device_map: str | None = None
    """Of the torch engine, as in transformers; None for a GPU if there is one."""
    trust_remote_code: bool = False
    """Whether code that comes with a model may run."""
    shares_machine: bool = False
    """Whether the target computes on the same cores."""
    lookup: bool = True
    """Whether prompt lookup drafts where the text repeats itself."""
    memory: bool = True
    """Whether lookup searches earlier answers, too."""
    lookup_meanwhile: bool = False
    """Whether prompt lookup drafts alone until the assistant is loaded."""
    max_draft: int = DEFAULT_MAX_DRAFT
    """Pieces drafted beyond the committed text, at most."""
    min_probability: float = DEFAULT_MIN_PROBABILITY
    """Paths less likely than this are not drafted."""
    max_context_tokens: int = DEFAULT_MAX_CONTEXT_TOKENS
    """How much of a text a session holds in the assistant's cache, at most."""
    prefix_sessions: int = DEFAULT_PREFIX_SESSIONS
    """Of how many sessions that ended the cache is kept, for those that go on from them."""

    def __post_init__(self) -> None:
        """Raises InvalidRequestError naming the flag that is wrong."""
        if self.engine not in ENGINES:
            raise _invalid(f"--engine {self.engine} is none of {', '.join(ENGINES)}")
        if self.engine != "lookup" and not self.model:
            raise _invalid(f"--engine {self.engine} needs an assistant: give one with --model")
        if self.engine == "lookup" and not self.lookup:
            raise _invalid("--engine lookup and --no-lookup leave no drafter: drop one of them")
        if self.lookup_meanwhile and not self.lookup:
            raise _invalid("--lookup-meanwhile drafts by lookup: drop --no-lookup")
        if self.device_map is not None and self.engine != "torch":
            raise _invalid(f"--device-map does nothing with --engine {self.engine}: drop it")
        if self.max_draft < 1:
            raise _invalid(f"--max-draft is {self.max_draft}: give at least 1")
        if self.max_context_tokens < MIN_CONTEXT_TOKENS:
            raise _invalid(
                f"--max-context is {self.max_context_tokens}: give at least {MIN_CONTEXT_TOKENS}"
            )
        if self.threads is not None and self.threads < 1:
            raise _invalid(f"--threads is {self.threads}: give at least 1")
        if not 0 <= self.min_probability <= 1:
            raise _invalid(f"--min-probability is {self.min_probability}: give 0 to 1")


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A drafter and what others may know about it."""

    drafter: Drafter
    assistant: str
    """Its name, or "prompt lookup"."""
    engine: str
    """How it is run, for people."""
    in_turn: bool = False
    """Whether it drafts while the target does not compute: on the cores of both."""


def load_drafter(settings: DraftSettings, load_engine: EngineLoader | None = None) -> LoadedDrafter:
    """Finds or fetches the assistant and loads it; may take minutes. `load_engine` does so in place
    of what the settings name.

    Raises what `anydraft.models`, the engine and the tokenizer raise.
    """
    if settings.engine == "lookup":
        return load_lookup(settings)
    if settings.model is None:
        raise _invalid("an assistant is needed: give one with --model")
    load = load_engine or (_load_torch if settings.engine == "torch" else load_onnx)
    engine, tokenizer = load(settings.model, settings)
    assistant = AssistantDrafter(
        engine,
        tokenizer,
        settings.min_probability,
        settings.max_context_tokens,
        prefixes=KeptPrefixes(settings.prefix_sessions) if settings.prefix_sessions else None,
    )
    drafter: Drafter = assistant
    if settings.lookup:
        drafter = CombinedDrafter(assistant, _lookup(settings))
    name = _public_name(settings.model)
    return LoadedDrafter(drafter, name, drafter.description, settings.shares_machine)


def load_lookup(settings: DraftSettings) -> LoadedDrafter:
    """Prompt lookup alone, which is ready at once."""
    lookup = _lookup(settings)
    return LoadedDrafter(lookup, "prompt lookup", lookup.description)


def _lookup(settings: DraftSettings) -> LookupDrafter:
    return LookupDrafter(AnswerMemory() if settings.memory else None)


def _public_name(model: str) -> str:
    """Clients need not know where on this machine a folder lies."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model


def load_onnx(model: str, settings: DraftSettings) -> tuple[AssistantEngine, TextTokenizer]:
    """Raises what `anydraft.models`, the engine and the tokenizer raise."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise _missing_package("onnxruntime", "draft") from error
    from anydraft.models import resolve_assistant_files
    from anydraft.text.tokenizer import TextTokenizer
    from draft_node.engines.onnx import OnnxEngine

    files = resolve_assistant_files(
        model, precision=settings.precision, trust_remote_code=settings.trust_remote_code
    )
    tokenizer = TextTokenizer.from_folder(files.folder)
    engine = OnnxEngine(
        files.folder,
        decoder=files.onnx_file,
        precision=settings.precision,
        threads=settings.threads,
        id_limit=tokenizer.id_limit,
    )
    return engine, tokenizer


def _load_torch(model: str, settings: DraftSettings) -> tuple[AssistantEngine, TextTokenizer]:
    try:
        import torch
    except ImportError as error:
        raise _missing_package("torch", "verify") from error
    from anydraft.models import load_dense, resolve_model
    from anydraft.models.devices import require_device
    from anydraft.text.tokenizer import TextTokenizer
    from draft_node.engines.torch import TorchEngine

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    has_gpu = torch.cuda.is_available()
    device_map = settings.device_map or ("auto" if has_gpu else "cpu")
    require_device(device_map)
    loaded, files = load_dense(
        resolve_model(model),
        "auto" if device_map != "cpu" else torch.float32,
        device_map,
        trust_remote_code=settings.trust_remote_code,
    )
    tokenizer = TextTokenizer.from_transformers(files)
    return TorchEngine(loaded, id_limit=tokenizer.id_limit), tokenizer


def _missing_package(name: str, extra: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"This engine needs {name}: install it with pip install 'anydraft[{extra}]'.",
        reason="PACKAGE_MISSING",
    )


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{problem}.", reason="INVALID_SETTINGS")
