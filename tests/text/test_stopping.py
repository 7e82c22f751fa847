import pytest
from hypothesis import given
from hypothesis import strategies as st

from anydraft.errors import InvalidRequestError
from anydraft.text import StopMatcher

narrow = st.text("ab🙂", max_size=24)
stop_strings = st.lists(st.text("ab🙂", min_size=1, max_size=5), max_size=4)


def naive(text, stops):
    """Text before the stop string that is complete first, the longest of those; and that one."""
    found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    _, start, stop = min(found)
    return text[:start], stop


def run(matcher, parts):
    shown, matched = "", None
    for part in parts:
        safe, matched = matcher.push(part)
        shown += safe
        if matched is not None:
            break
    return shown + matcher.flush(), matched


@given(parts=st.lists(narrow, max_size=6), stops=stop_strings)
def test_finds_what_a_search_of_the_whole_finds(parts, stops):
    assert run(StopMatcher(stops), parts) == naive("".join(parts), stops)


@given(text=narrow, stops=stop_strings)
def test_the_cut_of_the_text_does_not_matter(text, stops):
    assert run(StopMatcher(stops), list(text)) == run(StopMatcher(stops), [text])


@given(text=narrow, stops=stop_strings)
def test_only_what_may_become_a_stop_string_is_held(text, stops):
    matcher = StopMatcher(stops)
    shown, matched = matcher.push(text)
    held = matcher.flush()
    if matched is None:
        assert shown + held == text
        assert not held or any(stop.startswith(held) for stop in stops)
    else:
        assert held == ""


shown_parts = st.lists(st.tuples(st.text("ab", max_size=4), st.booleans()), max_size=8)


@given(parts=shown_parts, stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_hidden_text_is_matched_and_not_shown(parts, stops):
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(text, None if shows else "")[0] for text, shows in parts)
    shown += matcher.flush()
    whole = "".join(text for text, _ in parts)
    before, stop = naive(whole, stops)
    visible = [shows for text, shows in parts for _ in text]
    assert matcher.matched == stop
    assert shown == "".join(
        character for character, shows in zip(before, visible[: len(before)], strict=True) if shows
    )
    if stop is not None:
        assert matcher.matched_at == len(before)


def test_text_that_is_shown_otherwise_is_shown_whole_or_not_at_all():
    matcher = StopMatcher(["b"])
    assert matcher.push("xa", "[X]") == ("[X]", None)
    assert matcher.push("ab", "[Y]") == ("", "b")
    assert StopMatcher(["ab"]).push("xa", "[X]") == ("", None)


@pytest.mark.parametrize("stop", ["a" * 256, "a" * 255 + "b", "ab" * 128])
def test_work_grows_with_the_text_only(stop):
    class Counted(str):
        compared = 0

        def startswith(self, prefix, *rest):
            Counted.compared += len(prefix)
            return str.startswith(self, prefix, *rest)

    matcher = StopMatcher([Counted(stop)] * 16)
    for _ in range(50):
        matcher.push("a" * 20 + "c")
    once, Counted.compared = Counted.compared, 0
    for _ in range(500):
        matcher.push("a" * 20 + "c")
    assert Counted.compared <= 10 * max(once, 1)


def test_overlapping_stop_strings():
    assert run(StopMatcher(["aab"]), "aaab") == ("a", "aab")
    assert run(StopMatcher(["abab", "b"]), ["xabab"]) == ("xa", "b")
    assert run(StopMatcher(["ab", "xab"]), ["xab"]) == ("", "xab")


def test_a_match_over_several_pushes():
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hi\n") == ("Hi", None)
    assert matcher.push("\nUse") == ("", None)
    assert matcher.push("r: x") == ("", "\n\nUser:")
    assert matcher.push("more") == ("", "\n\nUser:")
    assert matcher.flush() == ""


def test_what_turns_out_harmless_is_shown():
    matcher = StopMatcher(["STOP"])
    assert matcher.push("ST") == ("", None)
    assert matcher.push("AND") == ("STAND", None)
    assert matcher.push("ST") == ("", None)
    assert matcher.flush() == "ST"


def test_without_stop_strings_everything_is_shown():
    assert StopMatcher([]).push("anything") == ("anything", None)


def test_empty_stop_strings_are_refused():
    with pytest.raises(InvalidRequestError, match="empty"):
        StopMatcher(["x", ""])
