"""What is known of an answer at any moment: all that another verify node needs to go on with it."""

from __future__ import annotations

from anydraft.v1.prompt_pb2 import GenerationSpec
from anydraft.v1.result_pb2 import Opened, Resume
from anydraft.v1.verification_pb2 import Verdict


class AnswerProgress:
    """Of one answer: a few bytes a token."""

    def __init__(self, spec: GenerationSpec, resume: Resume | None) -> None:
        """`resume`: where the answer was begun before it came here."""
        self._spec = GenerationSpec()
        self._spec.CopyFrom(spec)
        self._has_begun = False
        self._token_ids = [] if resume is None else list(resume.token_ids)
        self.fingerprint = "" if resume is None else resume.fingerprint
        """Of the verify nodes that may go on with it; empty while any may."""

    @property
    def spec(self) -> GenerationSpec:
        """With the seed and the limit in force, once they are known."""
        return self._spec

    @property
    def has_begun(self) -> bool:
        """Whether a verify node has said anything of it."""
        return self._has_begun

    @property
    def may_go_on(self) -> bool:
        """Whether another verify node could make the rest of it."""
        return bool(self.fingerprint) or not self._has_begun

    @property
    def resume(self) -> Resume | None:
        """None while nothing was committed that a verify node would have to know."""
        if not self.fingerprint:
            return None
        return Resume(token_ids=self._token_ids, fingerprint=self.fingerprint)

    def opened(self, opened: Opened) -> None:
        self._has_begun = True
        self.fingerprint = opened.fingerprint
        self._spec.sampling.seed = opened.seed
        self._spec.stop.max_new_tokens = opened.max_new_tokens

    def committed(self, verdict: Verdict) -> None:
        self._token_ids.extend(verdict.token_ids)
