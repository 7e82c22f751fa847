"""The names that people import, and what importing them needs."""

import inspect
import subprocess
import sys
import textwrap

import anydraft
from anydraft import client, errors
from tests.client.fake_node import FakeNode

BELONG_TO_EXTRAS = [
    "accelerate",
    "filelock",
    "gguf",
    "grpc_health",
    "grpc_reflection",
    "huggingface_hub",
    "jinja2",
    "numpy",
    "onnx_ir",
    "onnxruntime",
    "onnxruntime_genai",
    "psutil",
    "rich",
    "safetensors",
    "sentencepiece",
    "tokenizers",
    "torch",
    "tqdm",
    "transformers",
]


def test_exported_names() -> None:
    classes = inspect.getmembers(errors, inspect.isclass)
    error_names = {name for name, cls in classes if cls.__module__ == errors.__name__}
    assert set(anydraft.__all__) == {*client.__all__, *error_names, "Reason", "__version__"}
    assert anydraft.__all__ == sorted(anydraft.__all__)
    for name in anydraft.__all__:
        assert getattr(anydraft, name) is not None
        assert name in dir(anydraft)


def test_public_classes_do_not_show_private_modules() -> None:
    assert repr(anydraft.Client) == "<class 'anydraft.Client'>"
    for name in client.__all__:
        exported = getattr(anydraft, name)
        if inspect.isclass(exported):
            assert exported.__module__ == "anydraft"
    assert repr(anydraft.Client("127.0.0.1:5")) == "<anydraft.Client 127.0.0.1:5>"


def test_unknown_names_raise() -> None:
    assert not hasattr(anydraft, "Cleint")


def _run(code: str) -> str:
    script = textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_bare_install_is_enough(node: FakeNode) -> None:
    printed = _run(
        f"""
        import sys

        class OnlyTheBareInstall:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {BELONG_TO_EXTRAS!r}:
                    raise ImportError(f"{{name}} belongs to an extra")

        sys.meta_path.insert(0, OnlyTheBareInstall())
        import anydraft
        from anydraft.cli.main import main

        with anydraft.Client({node.address!r}) as client:
            client.wait_until_ready(timeout=10)
            print(client.generate("Hi").result().text)
        assert main(["generate", "--server", {node.address!r}, "--prompt", "Hi"]) == 0
        import anydraft.cli.doctor
        """
    )
    assert printed.splitlines() == ["Hello wörld", "Hello wörld"]


def test_importing_the_package_imports_nothing_else() -> None:
    printed = _run("import sys, anydraft; print('grpc' in sys.modules, 'typing' in sys.modules)")
    assert printed.split() == ["False", "True"]
