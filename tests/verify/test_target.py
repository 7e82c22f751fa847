"""The seam between sessions and targets."""

from __future__ import annotations

import subprocess
import sys


def test_the_seam_carries_no_torch() -> None:
    """An engine of another kind implements `Target` without either library."""
    script = (
        "import sys, verify_node.target\n"
        "print({'torch', 'transformers'} & {name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
