"""No line of the package may run what a model or a download brought along: ruff's rules, and those of `unsafe`."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.parser import parse
from unsafe import findings

ROOT = Path(__file__).parents[2]
ALLOWED = {
    # one of two modules of our own, by SGLang's version
    ("src/estr/cluster/sglang/__init__.py", "imports a module of a variable name"),
}

RUFF = {
    "exec('1')": "S102",
    "import pickle\npickle.loads(b'')": "S301",
    "from pickle import loads as read\nread(b'')": "S301",
    "import marshal\nmarshal.loads(b'')": "S302",
    "import pandas\npandas.read_pickle('x')": "S301",
    "eval('1')": "S307",
    "import yaml\nyaml.load('x', Loader=yaml.Loader)": "S506",
    "import tarfile\nwith tarfile.open('x') as tar:\n    tar.extractall()": "S202",
    "import subprocess\nsubprocess.run('x | y', shell=True)": "S602",
    "import os\nname = input()\nos.system(name)": "S605",
    "import tempfile\ntempfile.mktemp()": "S306",
    "import xml.etree.ElementTree as tree\ntree.parse('x')": "S314",
    "import httpx\nhttpx.get('https://x', verify=False)": "S501",
    "import hashlib\nhashlib.md5(b'')": "S324",
    "host = '0.0.0.0'": "S104",
    "import os\nos.chmod('x', 0o777)": "S103",
    "import jinja2\njinja2.Environment()": "S701",
}
OWN = {
    "import pickle": "imports pickle",
    "import pickle as p\np.loads(b'')": "imports pickle",
    "from pickle import loads": "imports pickle",
    "from joblib import load": "imports joblib",
    "import dill": "imports dill",
    "import cloudpickle": "imports cloudpickle",
    "import shelve": "imports shelve",
    "import marshal": "imports marshal",
    "import importlib\nimportlib.import_module('pickle').loads(b'')": "uses pickle.loads",
    "from importlib import import_module as get\nget('dill')": "uses dill",
    "import importlib\nimportlib.import_module(input())": "imports a module of a variable name",
    "__import__(input())": "__import__ runs text as code",
    "run = eval": "eval runs text as code",
    "import builtins\nbuiltins.exec('1')": "exec runs text as code",
    "import builtins as b\ng = getattr(b, 'eval')": "eval runs text as code",
    "exec(compile('1', 'x', 'exec'))": "compile runs text as code",
    "import torch\ntorch.load('x')": "torch.load unpickles",
    "import torch\ntorch.load('x', weights_only=True)": "torch.load unpickles",
    "import torch as t\nu = t\nv = u\nv.load('x')": "torch.load unpickles",
    "from torch import load as read\nread('x')": "torch.load unpickles",
    "import torch\nread = torch.load": "torch.load unpickles",
    "import torch\ngetattr(torch, 'load')('x')": "torch.load unpickles",
    "import torch\ntorch.hub.load('x', 'y')": "torch.hub.load unpickles",
    "import pandas as pd\npd.read_pickle('x')": "pandas.read_pickle unpickles",
    "import numpy as np\nnp.load('x', allow_pickle=True)": "allow_pickle is not False",
    "import numpy as np\nsafe = False\nnp.load('x', allow_pickle=not safe)": "allow_pickle is not False",
    "options = {'allow_pickle': True}": "allow_pickle is not False",
    "import datasets\ndatasets.load_dataset('x', trust_remote_code=True)": "trust_remote_code is not False",
    "options = dict(trust_remote_code=True)": "trust_remote_code is not False",
    "from safetensors import torch\nx = dict(weights_only=False)": "weights_only is not True",
    "import yaml\nyaml.unsafe_load('x')": "yaml.unsafe_load builds any object",
    "import shutil\nshutil.unpack_archive('x')": "shutil.unpack_archive may write or run anything",
    "import zipfile\nzipfile.ZipFile('x').extractall()": "extracts an archive to where it says",
    "from transformers import AutoModel\nAutoModel.from_pretrained('x', trust_remote_code=False)": (
        "AutoModel.from_pretrained without use_safetensors=True"
    ),
    "import transformers as t\nt.AutoTokenizer.from_pretrained('x')": (
        "AutoTokenizer.from_pretrained without trust_remote_code=False"
    ),
}
HARMLESS = [
    "import re\nre.compile('x')",
    "model.eval()",
    "import numpy as np\nnp.load('x')\nnp.load('x', allow_pickle=False)",
    "import json\njson.load(file)",
    "import yaml\nyaml.safe_load('x')",
    "from safetensors.torch import load_file\nload_file('x')",
    "from importlib import import_module\nimport_module('estr.cluster.verl')",
    "from transformers import AutoModel\nAutoModel.from_pretrained('x', use_safetensors=True, trust_remote_code=False)",
]


def python_of(file: Path) -> str:
    """What Snakemake makes of a Snakefile or a file that it includes."""
    if file.suffix == ".py":
        return file.read_text()
    workflow = SimpleNamespace(sourcecache=SimpleNamespace(open=lambda path: file.open()))
    return str(parse(SimpleNamespace(get_path_or_uri=lambda secret_free: str(file)), workflow, {})[0])


def sources() -> list[Path]:
    found = [file for folder in ("src", "workflow") for file in (ROOT / folder).rglob("*")]
    return sorted(file for file in found if file.suffix in (".py", ".smk") or file.name == "Snakefile")


def test_package_and_workflow_hold_nothing_unsafe() -> None:
    files = {str(file.relative_to(ROOT)): python_of(file) for file in sources()}
    assert len(files) > 200 and "workflow/rules/common.smk" in files
    found = {(name, text.partition(": ")[2]) for name, code in files.items() for text in findings(code)}
    assert found == ALLOWED


@pytest.mark.parametrize(("code", "problem"), OWN.items())
def test_an_offence_is_found(code: str, problem: str) -> None:
    assert problem in [text.partition(": ")[2] for text in findings(code)]


@pytest.mark.parametrize("code", HARMLESS)
def test_what_is_harmless_is_not_reported(code: str) -> None:
    assert findings(code) == []


def test_an_offence_in_a_rule_of_the_workflow_is_found(tmp_path: Path) -> None:
    rule = tmp_path / "rule.smk"
    rule.write_text("import torch\n\n\nrule all:\n    run:\n        torch.load('x')\n")
    assert [text.partition(": ")[2] for text in findings(python_of(rule))] == ["torch.load unpickles"]


def test_ruff_reports_every_offence(tmp_path: Path) -> None:
    """With the settings of pyproject.toml."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "src/estr").mkdir(parents=True)
    expected = {}
    for number, (code, rule) in enumerate(RUFF.items()):
        file = tmp_path / f"src/estr/offence{number}.py"
        file.write_text(code + "\n")
        expected[file.name] = rule
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "json", "."]
    reported = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout)
    found = {(Path(line["filename"]).name, line["code"]) for line in reported}
    assert set(expected.items()) <= found


def test_no_rule_is_switched_off_without_a_reason() -> None:
    """A `noqa` for one of ruff's security rules says why."""
    lines = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in sources()
        for line in file.read_text().splitlines()
        if re.search(r"noqa: S\d", line) and " - " not in line.partition("noqa: S")[2]
    ]
    assert lines == []
