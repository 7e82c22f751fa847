"""What a model's generation_config asks for, read once when the model is loaded.

`docs/generation_config.md` says of each of its settings whether it is obeyed. Values only: neither
torch nor transformers is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from transformers import GenerationConfig

_Number = TypeVar("_Number", int, float)

NOT_OBEYED: dict[str, tuple[object, ...]] = {
    "num_beams": (None, 1),
    "constraints": (None,),
    "force_words_ids": (None,),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "guidance_scale": (None, 1),
    "watermarking_config": (None,),
    "token_healing": (None, False),
    "max_time": (None,),
}
"""Settings by which `generate` would answer otherwise than this node, and the values of each that
change nothing."""
_ROUNDING_CACHE = "quantized"
"""The one `cache_implementation` that changes an answer."""


@dataclass(frozen=True, slots=True)
class ModelRules:
    """What a model asks for and no request can change, by the names of generation_config.

    Every value is neutral unless said otherwise.
    """

    no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0
    """Of a decoder, the prompt is what was encoded: `generate` applies both to it."""
    encoder_no_repeat_ngram_size: int = 0
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    """Follows a prompt of one token."""
    forced_eos_token_id: tuple[int, ...] = ()
    """The answer's last token, where it reaches its limit."""
    exponential_decay_length_penalty: tuple[int, float] | None = None
    """Tokens of the answer after which ends become likelier, and how fast."""
    remove_invalid_values: bool = False
    renormalize_logits: bool = False
    top_h: float | None = None
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What holds where a request is silent, and what holds always.

    Settings that the model leaves out are neutral, where `generate` would take its own (top_k = 50,
    20 tokens).
    """

    temperature: float = 0.0
    """0 is greedy, which a config without `do_sample` is too."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int = 0
    eos_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    """End a turn as `eos_ids` do, besides the request's own."""
    rules: ModelRules = field(default_factory=ModelRules)

    @classmethod
    def read(cls, config: GenerationConfig) -> GenerationDefaults:
        """Raises TypeError or ValueError when a setting is of another kind than transformers asks
        for; `check_defaults` makes that an error with a name.
        """
        values = vars(config)

        def value(name: str, neutral: Any) -> Any:
            found = values.get(name)
            return neutral if found is None else found

        return cls(
            temperature=_temperature(value("temperature", 1.0)) if config.do_sample else 0.0,
            top_k=int(value("top_k", 0)),
            top_p=float(value("top_p", 1.0)),
            min_p=float(value("min_p", 0.0)),
            repetition_penalty=float(value("repetition_penalty", 1.0)),
            max_new_tokens=_optional(int, config.max_new_tokens),
            max_length=_optional(int, config.max_length),
            min_new_tokens=_optional(int, config.min_new_tokens),
            min_length=int(value("min_length", 0)),
            # A negative id stands for "none" in some files.
            eos_ids=tuple(i for i in _ids(value("eos_token_id", ())) if i >= 0),
            stop_strings=_stop_strings(value("stop_strings", ())),
            rules=_rules(value),
        )

    def max_new_tokens_after(self, prompt_tokens: int) -> int | None:
        """How long an answer may be whose request does not say; None as long as the context, less
        than 1 where the prompt leaves no room. `max_new_tokens` goes before `max_length`, which
        counts the prompt.
        """
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return None if self.max_length is None else self.max_length - prompt_tokens

    def min_new_tokens_after(self, prompt_tokens: int) -> int:
        """Likewise: `min_new_tokens` goes before `min_length`, which counts the prompt."""
        if self.min_new_tokens is not None:
            return max(self.min_new_tokens, 0)
        return max(self.min_length - prompt_tokens, 0)


def not_obeyed(config: GenerationConfig) -> list[str]:
    """Names of settings that `generate` obeys and this node does not."""
    names = [
        name for name, neutral in NOT_OBEYED.items() if getattr(config, name, None) not in neutral
    ]
    if config.cache_implementation == _ROUNDING_CACHE:
        names.append("cache_implementation")
    return names


def _rules(value: Any) -> ModelRules:
    """`value(name, neutral)` is a setting, or `neutral` where there is none."""
    decay = value("exponential_decay_length_penalty", None)
    bias = value("sequence_bias", ())
    pairs = bias.items() if isinstance(bias, dict) else bias
    return ModelRules(
        no_repeat_ngram_size=int(value("no_repeat_ngram_size", 0)),
        encoder_repetition_penalty=float(value("encoder_repetition_penalty", 1.0)),
        encoder_no_repeat_ngram_size=int(value("encoder_no_repeat_ngram_size", 0)),
        sequence_bias=tuple((_sequence(ids), float(added)) for ids, added in pairs),
        bad_words_ids=tuple(_sequence(ids) for ids in value("bad_words_ids", ())),
        suppress_tokens=_ids(value("suppress_tokens", ())),
        begin_suppress_tokens=_ids(value("begin_suppress_tokens", ())),
        forced_bos_token_id=_optional(int, value("forced_bos_token_id", None)),
        forced_eos_token_id=_ids(value("forced_eos_token_id", ())),
        exponential_decay_length_penalty=decay and (int(decay[0]), float(decay[1])),
        remove_invalid_values=value("remove_invalid_values", False) is True,
        renormalize_logits=value("renormalize_logits", False) is True,
        top_h=_optional(float, value("top_h", None)),
        typical_p=float(value("typical_p", 1.0)),
        epsilon_cutoff=float(value("epsilon_cutoff", 0.0)),
        eta_cutoff=float(value("eta_cutoff", 0.0)),
    )


def _optional(kind: Callable[[Any], _Number], value: Any) -> _Number | None:
    return None if value is None else kind(value)


def _temperature(value: Any) -> float:
    temperature = float(value)
    if not temperature >= 0:
        raise ValueError(f"`temperature` is {temperature}, which is below 0 or no number")
    return temperature


def _stop_strings(value: str | Iterable[str]) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise ValueError(f"`stop_strings` is {value!r}, and not every one is a text")
    return stops


def _sequence(ids: Iterable[int]) -> tuple[int, ...]:
    sequence = tuple(int(i) for i in ids)
    if not sequence:
        raise ValueError("a sequence of ids is empty")
    return sequence


def _ids(value: int | Iterable[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(int(i) for i in value)
