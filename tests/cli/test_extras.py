"""Without an extra, whatever needs it says which one to install, before anything else happens."""

from __future__ import annotations

import subprocess
import sys

import pytest

from anydraft.extras import needs_extra
from tests.client.test_surface import BELONG_TO_EXTRAS

BARE = f"""
import sys

class OnlyTheBareInstall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BELONG_TO_EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, OnlyTheBareInstall())
from MODULE import main
sys.exit(main())
"""
PROGRAMS = {
    "anydraft": "anydraft.cli.main",
    "anydraft-draft": "draft_node.__main__",
    "anydraft-verify": "verify_node.__main__",
}


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("anydraft-draft --engine lookup", "draft"),
        ("anydraft-draft --model smollm2-135m-instruct", "draft"),
        ("anydraft-verify --model smollm2-135m-instruct", "verify"),
        ("anydraft models pull some/repository", "draft"),
        ("anydraft models pull smollm2-135m-instruct", "draft"),
    ],
)
def test_the_extra_is_named(line: str, extra: str) -> None:
    done = _run_bare(line)
    (printed,) = done.stderr.splitlines()
    assert printed.startswith(f"{line.split()[0]}: this needs ")
    assert printed.endswith(f": run pip install 'anydraft[{extra}]'")
    assert done.returncode in (1, 2)


@pytest.mark.parametrize(
    "line",
    [
        "anydraft --help",
        "anydraft --version",
        "anydraft generate --help",
        "anydraft chat --help",
        "anydraft demo --help",
        "anydraft models --help",
        "anydraft models list",
        "anydraft doctor --help",
        "anydraft-verify --help",
    ],
)
def test_what_needs_no_extra(line: str) -> None:
    done = _run_bare(line)
    assert (done.returncode, done.stderr) == (0, "")


def _run_bare(line: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = line.split()
    code = BARE.replace("MODULE", PROGRAMS[program])
    environment = {"PATH": "/usr/bin:/bin", "ANYDRAFT_CACHE": "/no/such/folder"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )


def test_a_module_of_ours_that_is_missing_is_a_fault_of_ours() -> None:
    with pytest.raises(ModuleNotFoundError), needs_extra("draft"):
        import anydraft.no_such_module  # noqa: F401
