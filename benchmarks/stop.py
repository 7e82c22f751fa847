"""How long SIGTERM takes while five Verify streams are open that never said `open`.

They have no answer to finish, so the node's grace (10 s by default) is not theirs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence

import grpc

from anydraft.rpc.channel import dial_sync
from anydraft.v1.verification_pb2 import VerifyRequest
from anydraft.v1.verification_pb2_grpc import VerificationServiceStub
from benchmarks._common import MODEL, BenchmarkNode, Findings, run_script, running_node

NUM_STREAMS = 5
_TIMEOUT_S = 60.0
_SETTLE_S = 1.0


def _silence(over: threading.Event) -> Iterator[VerifyRequest]:
    over.wait()
    yield from ()


def stop_s(node: BenchmarkNode, address: str, num_streams: int) -> Findings:
    over = threading.Event()
    with dial_sync(address) as channel:
        grpc.channel_ready_future(channel).result(_TIMEOUT_S)
        stub = VerificationServiceStub(channel)
        calls = [stub.Verify(_silence(over)) for _ in range(num_streams)]
        over.wait(_SETTLE_S)  # for the streams to arrive
        seconds, code = node.terminate(_TIMEOUT_S)
        for call in calls:
            call.cancel()
        over.set()
    return {"streams": num_streams, "seconds": round(seconds, 2), "exit_code": code}


def measure(short: bool) -> Findings:
    """The short form leaves out the node without streams, with which to compare."""
    runs: list[Findings] = []
    for num_streams in (NUM_STREAMS,) if short else (0, NUM_STREAMS):
        with running_node("verify_node", "--model", MODEL) as (node, address):
            runs.append(stop_s(node, address, num_streams))
    return {"runs": runs}


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
