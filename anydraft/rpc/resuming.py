"""The request for what is left of an answer, by whoever knows how far it came."""

from __future__ import annotations

from collections.abc import Sequence

from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.result_pb2 import Resume


def rest_of(
    request: GenerateRequest,
    *,
    seed: int,
    max_new_tokens: int,
    token_ids: Sequence[int],
    fingerprint: str,
) -> GenerateRequest:
    """`request` began the answer, whose `Opened` named seed, limit and fingerprint; `token_ids` are
    all that were committed. `request` stays as it is."""
    rest = GenerateRequest()
    rest.CopyFrom(request)
    rest.spec.sampling.seed = seed
    rest.spec.stop.max_new_tokens = max_new_tokens
    rest.resume.CopyFrom(Resume(token_ids=token_ids, fingerprint=fingerprint))
    return rest
