"""What a chat template may cost, and what happens to the prompts beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anydraft.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    ResourceExhaustedError,
)
from anydraft.text import template_process, template_worker
from anydraft.text.template_process import TemplateProcesses

HALF_A_GIGABYTE = "{{ 'x' * 500000000 }}"
LONG = "{{ 'x' * 5000000 }}"
PIECEWISE = "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}"
NESTED = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}done"
ONE_EXPRESSION = "{{ (9 ** 999999999) % 7 }}"
ENDLESS_MACRO = "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"


@pytest.fixture
def processes():
    pool = TemplateProcesses()
    yield pool
    pool.close()


@pytest.mark.parametrize("template", [HALF_A_GIGABYTE, LONG, PIECEWISE, NESTED, ONE_EXPRESSION])
def test_a_template_that_costs_too_much_is_cut_off(processes, template):
    with pytest.raises(InvalidRequestError, match="too much") as caught:
        processes.render(template, {})
    assert caught.value.reason == "CHAT_TEMPLATE_TOO_COSTLY"
    assert processes.render("{{ word }}", {"word": "next"}) == "next"


@pytest.mark.skipif(sys.platform != "linux", reason="the system limits no address space")
def test_memory_is_bounded_where_the_text_is_short(processes):
    template = "{{ ('x' * n) | length }}"
    assert processes.render(template, {"n": 10_000_000}) == "10000000"
    with pytest.raises(InvalidRequestError, match="too much"):
        processes.render(template, {"n": template_worker.MEMORY_LIMIT_BYTES})
    assert processes.render("fine", {}) == "fine"


def test_a_template_without_end_is_cut_off_or_refused(processes):
    with pytest.raises(InvalidRequestError):
        processes.render(ENDLESS_MACRO, {})
    assert processes.render("fine", {}) == "fine"


def test_other_prompts_are_rendered_beside_it(processes):
    with ThreadPoolExecutor(1) as pool:
        costly = pool.submit(processes.render, NESTED, {})
        count = 0
        while not costly.done():
            assert processes.render("{{ n }}", {"n": count}) == str(count)
            count += 1
        with pytest.raises(InvalidRequestError):
            costly.result()
    assert count > 5


def test_many_at_once_get_their_own_text(processes):
    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(lambda n: processes.render("{{ n }}", {"n": n}), range(200))
        assert list(texts) == [str(n) for n in range(200)]
    assert len(processes._idle) <= template_process.MAX_PROCESSES


def test_a_process_that_was_killed_is_replaced(processes):
    assert processes.render("one", {}) == "one"
    os.kill(processes._idle[0].pid, signal.SIGKILL)
    processes._idle[0]._popen.wait()
    assert processes.render("two", {}) == "two"


def test_a_process_that_is_killed_while_it_renders_costs_one_prompt(processes):
    assert processes.render("one", {}) == "one"
    pid = processes._idle[0].pid
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(InvalidRequestError):
        processes.render(NESTED, {})
    assert processes.render("two", {}) == "two"
    assert processes._idle[0].pid != pid


def test_a_process_may_be_started_before_it_is_needed(processes):
    processes.warm_up()
    processes.warm_up()
    (process,) = processes._idle
    assert processes.render("one", {}) == "one"
    assert processes._idle == [process]


def test_a_warm_up_that_fails_is_said_by_the_first_prompt(processes, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/missing")
    processes.warm_up()
    with pytest.raises(ResourceExhaustedError, match="missing"):
        processes.render("x", {})


def test_errors_of_a_template(processes):
    with pytest.raises(InvalidRequestError, match="Roles must alternate") as refused:
        processes.render("{{ raise_exception('Roles must alternate') }}", {})
    assert refused.value.reason == "CHAT_TEMPLATE_REFUSED"
    with pytest.raises(FailedPreconditionError, match="does not parse") as broken:
        processes.render("{% for %}", {})
    assert broken.value.reason == "CHAT_TEMPLATE_BROKEN"
    with pytest.raises(InvalidRequestError) as long:
        processes.render("{{ raise_exception('x' * 1000000) }}", {})
    assert len(str(long.value)) < 2000


@pytest.mark.parametrize("text", ["", "\n\r\n\x85\u2028", "\ud800", "🙂\x00", '"\\'])
def test_any_text_goes_through(processes, text):
    template = "{{ text }}{{ text | tojson }}"
    expected = template_worker.answer(template, {"text": text})["text"]
    assert processes.render(template, {"text": text}) == expected
    assert expected.startswith(text)


def test_objects_are_taken_for_their_text(processes):
    assert processes.render("{{ path }}", {"path": Path("a")}) == "a"


def test_a_process_that_cannot_be_started_is_said(processes, monkeypatch):
    monkeypatch.setattr(template_process, "_WORKER", Path("missing.py"))
    with pytest.raises(ResourceExhaustedError, match="ended with 2"):
        processes.render("x", {})
    monkeypatch.setattr(sys, "executable", "/missing")
    with pytest.raises(ResourceExhaustedError, match="missing"):
        processes.render("x", {})


NODE = """
import sys
from anydraft.text.template_process import PROCESSES
PROCESSES.render("x", {})
print(PROCESSES._idle[0].pid, flush=True)
if sys.argv[1] == "render":
    PROCESSES.render(sys.argv[2], {})
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "render"])
def test_processes_end_with_a_node_that_is_killed(state):
    command = [sys.executable, "-c", NODE, state, NESTED]
    node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with node:
        pid = int(node.stdout.readline())
        node.kill()
    for _ in range(500):
        if not alive(pid):
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the process outlived its node")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().split()[2] != "Z"


def test_processes_end_with_a_node_that_ends():
    command = [sys.executable, "-c", NODE, "idle"]
    done = subprocess.run(command, input=b"", capture_output=True, check=True)
    assert not alive(int(done.stdout))
    assert done.stderr == b""
