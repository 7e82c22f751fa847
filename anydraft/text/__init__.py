"""Text rules: what makes "any tokenizer" true. Everything else trusts them."""

from anydraft.text.alignment import Branch, Candidate, DraftAligner
from anydraft.text.answer import AnswerPart, AnswerText
from anydraft.text.chat import render_messages
from anydraft.text.detokenizer import StreamingDetokenizer
from anydraft.text.mirror import AssistantMirror
from anydraft.text.stopping import StopMatcher
from anydraft.text.tokenizer import TextTokenizer

__all__ = [
    "AnswerPart",
    "AnswerText",
    "AssistantMirror",
    "Branch",
    "Candidate",
    "DraftAligner",
    "StopMatcher",
    "StreamingDetokenizer",
    "TextTokenizer",
    "render_messages",
]
