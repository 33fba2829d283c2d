"""What ruff has no rule for: code that could run what a model or a download brought along.

Names are followed through imports and assignments, so that `from torch import load as read` is found as well.
"""

import ast
from collections.abc import Iterator

PICKLES = frozenset({"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"})
"""Modules that no file imports."""
CALLS = {
    **dict.fromkeys(("eval", "exec", "compile", "__import__"), "runs text as code"),
    **dict.fromkeys(("torch.load", "torch.jit.load", "torch.hub.load", "pandas.read_pickle"), "unpickles"),
    **dict.fromkeys(("numpy.lib.format.read_array", "numpy.lib.npyio.NpzFile"), "may unpickle"),
    **dict.fromkeys(("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"), "builds any object"),
    **dict.fromkeys(("shutil.unpack_archive", "os.system", "os.popen"), "may write or run anything"),
}
"""Functions that no file names, whether it calls them or not."""
SAFE_VALUES = {"allow_pickle": False, "trust_remote_code": False, "weights_only": True, "use_safetensors": True}
"""Arguments that are given one literal value or none."""
LOADERS = {"trust_remote_code": ("Auto",), "use_safetensors": ("AutoModel",)}
"""What `from_pretrained` of such a class must be told: its defaults fall back to pickles, or ask a person."""


def findings(code: str) -> list[str]:
    """One line for each offence, with its line number."""
    tree = ast.parse(code)
    names = _bindings(tree)
    found = set()
    for node in ast.walk(tree):
        for problem in _problems(node, names):
            found.add((getattr(node, "lineno", 0), problem))
    return [f"line {line}: {problem}" for line, problem in sorted(found)]


def _bindings(tree: ast.AST) -> dict[str, str]:
    """What each name of the file stands for, as a dotted path; a name bound twice keeps the first offender."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for _ in range(3):  # an alias of an alias of an alias
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and (path := _dotted(node.value, names)):
                names |= {target.id: path for target in node.targets if isinstance(target, ast.Name)}
    return names


def _dotted(node: ast.expr | None, names: dict[str, str]) -> str | None:
    match node:
        case ast.Name(id=name):
            return names.get(name, name if name in CALLS else None)
        case ast.Attribute(value=value, attr=attribute) if path := _dotted(value, names):
            return f"{path}.{attribute}".removeprefix("builtins.")
        case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(attribute)), *_]):
            path = _dotted(value, names)
            return f"{path}.{attribute}".removeprefix("builtins.") if path else None
        case ast.Call(func=called, args=[ast.Constant(value=str(module)), *_]) if (
            _dotted(called, names) == "importlib.import_module"
        ):
            return module
    return None


def _problems(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    match node:
        case ast.Import(names=aliases):
            yield from (f"imports {a.name}" for a in aliases if a.name.partition(".")[0] in PICKLES)
        case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in PICKLES:
            yield f"imports {module}"
        case ast.keyword(arg=str(name), value=value) if name in SAFE_VALUES and not _is(value, SAFE_VALUES[name]):
            yield f"{name} is not {SAFE_VALUES[name]}"
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                name = key.value if isinstance(key, ast.Constant) else None
                if name in SAFE_VALUES and not _is(value, SAFE_VALUES[name]):
                    yield f"{name} is not {SAFE_VALUES[name]}"
        case ast.Call():
            yield from _call_problems(node, names)
    if isinstance(node, ast.Name | ast.Attribute | ast.Call) and (path := _dotted(node, names)):
        if path in CALLS:
            yield f"{path} {CALLS[path]}"
        if path.partition(".")[0] in PICKLES:
            yield f"uses {path}"


def _call_problems(call: ast.Call, names: dict[str, str]) -> Iterator[str]:
    if _dotted(call.func, names) == "importlib.import_module" and not isinstance(call.args[0], ast.Constant):
        yield "imports a module of a variable name"
    if not isinstance(call.func, ast.Attribute):
        return
    given = {keyword.arg for keyword in call.keywords}
    if call.func.attr == "extractall":
        yield "extracts an archive to where it says"
    if call.func.attr == "from_pretrained":
        owner = (_dotted(call.func.value, names) or ast.unparse(call.func.value)).rpartition(".")[2]
        for argument, prefixes in LOADERS.items():
            if owner.startswith(prefixes) and argument not in given:
                yield f"{owner}.from_pretrained without {argument}={SAFE_VALUES[argument]}"


def _is(value: ast.expr, wanted: bool) -> bool:
    return isinstance(value, ast.Constant) and value.value is wanted
