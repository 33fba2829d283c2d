import ast
import sys
from pathlib import Path

import estr.algorithm


def test_every_exported_name_exists_and_is_documented():
    for name in estr.algorithm.__all__:
        assert getattr(estr.algorithm, name) is not None
    functions = [name for name in estr.algorithm.__all__ if name.islower()]
    for name in functions:
        assert getattr(estr.algorithm, name).__doc__, name
        if name != "build_rule":
            assert f"`{name}`" in estr.algorithm.__doc__, name


def test_algorithm_imports_torch_and_the_standard_library_only():
    for module in Path(estr.algorithm.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            else:
                continue
            for name in names:
                package = name.split(".")[0]
                allowed = package == "torch" or package in sys.stdlib_module_names
                assert allowed or name.startswith("estr.algorithm"), f"{module.name} imports {name}"
