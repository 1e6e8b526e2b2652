"""Every process that haloctl starts is given its standard input: none can ask the person at the terminal."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("db", "haloctl", "jobs", "orchestrator", "workers")
STARTS = ("run", "Popen", "call", "check_call", "check_output")


def test_no_process_inherits_standard_input() -> None:
    offences = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for call in _starts(ast.parse(path.read_text(encoding="utf-8")))
        if not {"stdin", "input"} & {keyword.arg for keyword in call.keywords}
    ]
    assert offences == []


def test_every_loader_of_models_is_told_to_run_no_code() -> None:
    loaders = [
        (path.relative_to(ROOT), call)
        for path in sorted((ROOT / "workers" / "llm").rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in LOADERS
    ]
    assert {ast.unparse(call.func) for _, call in loaders} == LOADERS
    for path, call in loaders:
        told = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert "False" in (told.get("trust_remote_code"), told.get("trust_remote_code_model")), f"{path}:{call.lineno}"


#: What can run the code of a model's folder.
LOADERS = {
    "AutoTokenizer.from_pretrained",
    "AutoModelForCausalLM.from_pretrained",
    "AutoModelForCausalLM.from_config",
    "GPTQModel.load",
    "oneshot",
    "vllm.EngineArgs",
}


def _starts(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"subprocess.{name}" for name in STARTS}:
            yield node
