"""Whether a model's generation_config can be obeyed, tried out when the model is loaded.

Processors check their values when they are made or first used: without this, an id that the model
does not have would end every answer in the middle.
"""

from __future__ import annotations

import torch
from transformers import GenerationConfig

from anydraft.errors import InvalidRequestError, UnsupportedModelError
from anydraft.v1.prompt_pb2 import SamplingParams
from verify_node.generation_defaults import GenerationDefaults
from verify_node.sampling_settings import SamplingSettings
from verify_node.token_chooser import TokenChooser


def check_defaults(config: GenerationConfig, vocabulary_size: int) -> None:
    """Raises UnsupportedModelError when a setting's value cannot be obeyed."""
    try:
        defaults = GenerationDefaults.read(config)
        for asked in (SamplingParams(temperature=0.0), SamplingParams(temperature=0.5)):
            _try(asked, defaults, vocabulary_size)
    except (InvalidRequestError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UnsupportedModelError(
            f"the model's generation_config cannot be obeyed: {error}. Correct or remove the "
            "setting in its generation_config.json.",
            reason="GENERATION_CONFIG_INVALID",
        ) from error


def _try(asked: SamplingParams, defaults: GenerationDefaults, vocabulary_size: int) -> None:
    """The first tokens, the last, and one behind the start of a length penalty."""
    settings = SamplingSettings.resolve(asked, defaults, prompt_tokens=1, max_new_tokens=3)
    chooser = TokenChooser(settings, [0], defaults.eos_ids)
    decay = defaults.rules.exponential_decay_length_penalty
    for num_answer in (0, 1, 2, decay[0] + 1 if decay else 3):
        chooser.choose(torch.zeros(vocabulary_size), [0] * num_answer)
