"""`python -m tests.integration.knowing_node TRUTHS`: a draft node to be killed; it drafts what a
JSON file says, prompt by prompt, for whoever dials it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from draft_node.lifecycle import DraftNode
from draft_node.load import LoadedDrafter
from tests.integration.drafters import KnowingDrafter


async def serve(truths: dict[str, str]) -> None:
    node = DraftNode(None, "127.0.0.1:0")
    sys.stdout.write(f"{await node.start()}\n")
    sys.stdout.flush()
    drafter = KnowingDrafter(truths)
    await node.run_until_signal(lambda: LoadedDrafter(drafter, "knowing", "test"), 0.0)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
