"""The processes of a run: target, network, draft nodes; on loopback, and ended with their user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from anydraft.bench.plan import RANDOM, Conditions, Pair, Recorded, Step
from anydraft.cli.nodes import NodeProcess
from anydraft.closing import Closing

READY_TIMEOUT_S = 1800.0
_LISTEN = ("--listen", "127.0.0.1:0")
_BEAT_S = 10.0

Say = Callable[[str], None]


def target_node(pair: Pair) -> NodeProcess:
    """A verify node that serves the real target."""
    # All arms ask for the same prompts.
    args = ["--dtype", pair.dtype, "--no-prefix-cache"]
    if pair.target_threads is not None:
        args += ["--threads", str(pair.target_threads)]
    return _verify_node("verify_node", pair, args)


def _verify_node(module: str, pair: Pair, args: Sequence[str]) -> NodeProcess:
    args = ["--model", pair.target, *_LISTEN, *args]
    return NodeProcess(module, args, cores=pair.target_cores)


class Site(Closing):
    """Starts what conditions need, and keeps what the next ones need as well. A context manager."""

    def __init__(self, pair: Pair, folder: Path, recorded: Recorded | None, say: Say) -> None:
        """`folder`: the assistant, as ONNX."""
        self._pair = pair
        self._folder = folder
        self._recorded = recorded
        self._say = say
        self._verify = ""
        self._target = ExitStack()
        self._around = ExitStack()
        """Relay and draft nodes."""
        self._started: tuple[object, ...] = ()
        self._network = ""

    def start_target(self, step: Step | None) -> None:
        """Ends what there is, and starts this one; a real target where there is no `step`."""
        self._around.close()
        self._target.close()
        self._started = ()
        if self._pair.verify_address is not None:
            self._verify = self._pair.verify_address
            return
        node = target_node(self._pair) if step is None else self._simulated(step)
        self._target.enter_context(node)
        self._say(f"starting {node.module} for {self._pair.target}")
        while not node.is_settled(_BEAT_S):
            self._say(f"… the target: {node.doing or 'starting'}")
        self._verify = node.wait_ready(0)

    def start_around(self, conditions: Conditions) -> tuple[str, list[str]]:
        """The address of the target over the network, and of the draft nodes."""
        wanted = (conditions.piece_ms, conditions.round_trip_ms, conditions.num_draft_nodes)
        if self._started[:3] != wanted:
            self._around.close()
            network = self._start_network(conditions.round_trip_ms)
            drafts = self._start_drafts(conditions, network)
            self._started = (*wanted, drafts)
            self._network = network
        return self._network, list(self._started[3])  # type: ignore[call-overload]

    @property
    def verify_address(self) -> str:
        """Of the target itself."""
        return self._verify

    def _simulated(self, step: Step) -> NodeProcess:
        args = ["--step-ms", f"{step.step_ms:g}", "--slope", f"{step.slope:g}"]
        args += ["--answers", str(self._required().answers)]
        return _verify_node("verify_node.simulated", self._pair, args)

    def _start_network(self, round_trip_ms: float) -> str:
        if not round_trip_ms:
            return self._verify
        args = ["--target", self._verify, "--round-trip-ms", f"{round_trip_ms:g}"]
        relay = self._around.enter_context(NodeProcess("anydraft.bench.relay", args))
        return relay.wait_ready(READY_TIMEOUT_S)

    def _start_drafts(self, conditions: Conditions, network: str) -> Sequence[str]:
        pair = self._pair
        module = "draft_node"
        args = ["--model", str(self._folder), *_LISTEN, "--verify", network]
        args += ["--threads", str(pair.threads)]
        is_shared = pair.shares_cores and conditions.step is None
        args += ["--same-machine", "yes" if is_shared else "no"]
        if not pair.remembers:
            args += ["--no-memory", "--prefix-sessions", "0"]
        if pair.assistant == RANDOM:
            module = "draft_node.simulated"
            args += ["--useless", "--no-lookup"]
        if conditions.piece_ms is not None:
            module = "draft_node.simulated"
            args += ["--piece-ms", f"{conditions.piece_ms:g}"]
            recorded = self._required()
            args += ["--choices", str(recorded.choices), "--notes", str(recorded.notes)]
        nodes = [
            self._around.enter_context(NodeProcess(module, args, cores=pair.assistant_cores))
            for _ in range(conditions.num_draft_nodes)
        ]
        return [node.wait_ready(READY_TIMEOUT_S) for node in nodes]

    def _required(self) -> Recorded:
        if self._recorded is None:
            raise ValueError("a simulation needs recorded answers")
        return self._recorded

    def close(self) -> None:
        """Ends all processes, the target last."""
        self._around.close()
        self._target.close()
