"""The real Snakemake at scale smoke."""

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def snakemake(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [str(BIN / "snakemake"), "--config", "scale=smoke", "--", *arguments]
    if arguments and arguments[0].startswith("-"):
        command = [str(BIN / "snakemake"), *arguments, "--config", "scale=smoke"]
    result = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    assert result.returncode == code, output[-4000:]
    return output


def planned(folder: Path, *targets: str) -> dict[str, int]:
    """Jobs per rule of a dry run."""
    output = snakemake(folder, "-n", *targets)
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE) if name != "total"}
