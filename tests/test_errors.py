"""Errors travel between processes, and every reason is listed."""

import ast
import copy
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import anydraft
from anydraft import errors
from anydraft.errors import AnydraftError, InvalidFieldError
from anydraft.reasons import Reason

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if cls.__module__ == errors.__name__
]

COPIES = [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]


def _build(cls: type[AnydraftError]) -> AnydraftError:
    fields: dict[str, Any] = {"field": "sampling.top_p"} if cls is InvalidFieldError else {}
    return cls("wörld: mend it", reason="SOME_REASON", retry_after_s=2.5, **fields)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("make_copy", COPIES)
def test_errors_can_be_copied(cls: type[AnydraftError], make_copy: Callable[[Any], Any]) -> None:
    error = _build(cls)
    error.status = grpc.StatusCode.CANCELLED
    error.add_note("seen on Tuesday")
    twin = make_copy(error)
    assert twin is not error
    assert type(twin) is cls
    assert str(twin) == "wörld: mend it"
    assert vars(twin) == vars(error)
    assert (twin.reason, twin.retry_after_s) == ("SOME_REASON", 2.5)
    assert twin.status is grpc.StatusCode.CANCELLED


def test_a_status_of_the_class_stays_one() -> None:
    twin = pickle.loads(pickle.dumps(_build(errors.NotFoundError)))
    assert "status" not in vars(twin)
    assert twin.status is grpc.StatusCode.NOT_FOUND


def test_the_docstring_draws_every_class() -> None:
    drawn = errors.__doc__ or ""
    for cls in CLASSES:
        assert re.search(rf"[─ ] {cls.__name__}[ \n]", drawn)


ROOT = Path(__file__).parent.parent


def _reasons_in(tree: ast.AST) -> Iterator[str]:
    """What `reason=` is given anywhere, and what `.reason` is compared with."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="reason", value=value):
                yield from _words(value)
            case ast.Compare(left=ast.Attribute(attr="reason"), comparators=values):
                for value in values:
                    yield from _words(value)


def _words(value: ast.AST) -> Iterator[str]:
    for node in ast.walk(value):
        match node:
            case ast.Constant(value=str(word)) if word.isupper():
                yield word
            case ast.Attribute(value=ast.Name(id="Reason"), attr=word):
                yield word


def test_reasons_are_listed_and_used() -> None:
    used = {
        reason
        for package in ("anydraft", "draft_node", "verify_node")
        for file in (ROOT / package).rglob("*.py")
        for reason in _reasons_in(ast.parse(file.read_text()))
    }
    assert used == set(Reason)


def test_a_reason_is_its_own_name_and_fits_the_wire() -> None:
    for reason in Reason:
        assert reason == reason.name
        assert re.fullmatch(r"[A-Z][A-Z_]{1,61}[A-Z]", reason)
    assert anydraft.Reason is Reason


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('Error("m", reason="ONE" if x else "TWO")', ["ONE", "TWO"]),
        ('error.reason == "ONE"', ["ONE"]),
        ('error.reason in ("ONE", "TWO")', ["ONE", "TWO"]),
        ('Error("m", reason=Reason.ONE)', ["ONE"]),
        ('cut.reason == "eos"', []),
    ],
)
def test_reasons_are_found_however_they_are_written(source: str, found: list[str]) -> None:
    assert sorted(_reasons_in(ast.parse(source))) == found
