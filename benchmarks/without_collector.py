"""Runs a module with Python's garbage collector off: `without_collector MODULE ARGUMENTS`.

What is freed then was given back by somebody's explicit act, and not by luck.
"""

from __future__ import annotations

import gc
import runpy
import sys


def main() -> None:
    gc.disable()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
