"""Where the benchmarks come from: data sets of the Hugging Face Hub, or copies of them on disk.

Everything is read through `datasets.load_dataset`. A copy on disk is looked for below the folder given, in this
order, as `hf download --repo-type dataset` lays it out:

    <folder>/<owner>/<name>/                             --local-dir <folder>/<owner>/<name>
    <folder>/<name>/                                     --local-dir <folder>/<name>
    <folder>/datasets--<owner>--<name>/snapshots/<rev>/  --cache-dir <folder>

A copy is streamed, so that nothing of it enters the cache of `datasets`.
"""

import glob
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from estr.data.checks import Kind, describe, first_blank, mismatch
from estr.errors import UserError

BATCH = 1_000  # rows
READ_AHEAD = 10_000  # rows of a parquet file in memory
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Source:
    """One split of a data set, and what a whole copy of it must look like.

    `rows` is the exact number of rows. `columns` are those that are read; the set may have others. `files` are globs
    below a copy's folder; the first that matches anything is taken. `distinct` is the number of records if each is
    there several times, `parts` the rows of each value of the column `data_source`. Columns named in `blank` may be
    null or empty. `repeats` and `disagrees` say that questions are known to recur, with different answers.
    """

    repo: str
    split: str
    rows: int
    columns: Mapping[str, Kind]
    files: tuple[str, ...]
    config: str | None = None
    distinct: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    blank: tuple[str, ...] = ()
    repeats: bool = False
    disagrees: bool = False

    @property
    def card(self) -> str:
        """The page that states licence and terms."""
        return f"https://huggingface.co/datasets/{self.repo}"

    @property
    def title(self) -> str:
        return f"{self.repo} ({self.config + ', ' if self.config else ''}{self.split})"


class Reading:
    """An opened source; its rows may be gone through once."""

    def __init__(self, source: Source, place: str, dataset: Any, revision: str | None) -> None:
        self.source = source
        self.place = place
        """For messages: the data set, and where the copy lies."""
        self.revision = revision
        """Commit of the data set's repository, if known."""
        self._dataset = dataset

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Position and content of every row; raises like `batches`."""
        number = 0
        for batch in self.batches():
            for row in batch.to_pylist():
                yield number, row
                number += 1

    def batches(self, size: int = BATCH) -> Iterator[pa.Table]:
        """Tables of up to `size` rows with the source's columns.

        Raises `UserError` naming the place for unreadable files, for a column that is missing or of another type, for
        a field that is empty, and at the end if the number of rows is not the source's.
        """
        rows = 0
        tables = iter(self._dataset.with_format("arrow").iter(batch_size=size))
        with tqdm(total=self.source.rows, desc=self.source.title, unit="row", leave=False, disable=None) as bar:
            while True:
                try:
                    table = next(tables, None)
                except Exception as error:  # whatever a damaged file makes pyarrow or datasets raise
                    raise UserError(f"{self.place}: not readable after row {rows} ({_reason(error)})") from error
                if table is None:
                    break
                self._check_columns(table.schema)
                table = table.select(list(self.source.columns))
                self._check_filled(table, rows)
                rows += len(table)
                bar.update(len(table))
                yield table
        if rows != self.source.rows:
            raise UserError(
                f"{self.place}: {rows:,} rows, where the published set has {self.source.rows:,}; get a whole copy of it"
            )

    def note(self) -> dict[str, Any]:
        """What `data.json` says about the source."""
        return {
            "id": self.source.repo,
            "config": self.source.config,
            "split": self.source.split,
            "rows": self.source.rows,
            "revision": self.revision,
            "licence": self.source.card,
        }

    def _check_columns(self, schema: pa.Schema) -> None:
        for name, kind in self.source.columns.items():
            index = schema.get_field_index(name)
            if index < 0:
                raise UserError(f"{self.place}: no column {name!r}, only {', '.join(schema.names)}")
            wrong = mismatch(schema.field(index).type, kind)
            if wrong:
                raise UserError(f"{self.place}: column {name!r} is {wrong}; expected {describe(kind)}")

    def _check_filled(self, table: pa.Table, before: int) -> None:
        for name in self.source.columns.keys() - set(self.source.blank):
            row = first_blank(table[name])
            if row is not None:
                raise UserError(f"{self.place}: row {before + row}: {name} is empty; get a new copy")


def open_source(source: Source, folder: Path | None) -> Reading:
    """Open the copy below `folder`, or the Hub's if it is None.

    Raises `UserError` if there is none: it names the data set, its licence page and what to do.
    """
    return _open_hub(source) if folder is None else _open_copy(source, folder)


def _open_copy(source: Source, folder: Path) -> Reading:
    files, revision = _find(source, folder)
    place = f"{source.title} at {files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    parquet = files[0].suffix == ".parquet"
    for file in files:
        if parquet:
            _check_parquet(source, file)
        elif tarfile.is_tarfile(file):  # datasets unpacks archives only where it fills its cache
            raise UserError(
                f"{file}: a tar archive, whatever its name says; unpack it: "
                f"`tar -xOf {file} > {file.with_name(source.files[0])}`"
            )
    escaped = [glob.escape(str(file.absolute())) for file in files]  # datasets reads paths as patterns
    try:
        with tempfile.TemporaryDirectory() as locks:  # instead of a lock file in the user's cache
            dataset = _datasets().load_dataset(
                "parquet" if parquet else "json",
                data_files={source.split: escaped},
                split=source.split,
                streaming=True,
                cache_dir=locks,
                **_parquet_options(source),
            )
    except Exception as error:
        raise UserError(f"{place}: not readable ({_reason(error)})") from error
    return Reading(source, place, dataset, revision)


def _find(source: Source, folder: Path) -> tuple[list[Path], str | None]:
    owner, name = source.repo.split("/")
    cache = folder / f"datasets--{owner}--{name}"
    for base in (folder / owner / name, folder / name, *_snapshots(cache)):
        for pattern in source.files:
            files = sorted(file for file in base.glob(pattern) if file.is_file())
            if files:
                _require_inside(files, folder)
                return files, base.name if base.parent.parent == cache else None
    wanted = " or ".join(source.files)
    raise UserError(
        f"no copy of {source.title} below {folder}: looked for {wanted} in {source.repo}/, {name}/ and "
        f"{cache.name}/snapshots/*/; `{_download(source, folder)}` makes one (licence: {source.card})"
    )


def _require_inside(files: list[Path], folder: Path) -> None:
    """A Hub cache is full of links, but they stay inside it."""
    root = folder.resolve()
    for file in files:
        if not file.resolve().is_relative_to(root):
            raise UserError(f"{file}: leads out of {folder}, to {file.resolve()}; pass --from the folder that holds it")


def _snapshots(cache: Path) -> list[Path]:
    """The snapshot that the branch main of a Hub cache points to; all, if it has no such reference."""
    main = cache / "refs" / "main"
    if main.is_file():
        commit = main.read_text().strip()
        if not re.fullmatch("[0-9a-f]+", commit):
            raise UserError(f"{main}: holds no commit; make the copy again")
        return [cache / "snapshots" / commit]
    return sorted((cache / "snapshots").glob("*"))


def _check_parquet(source: Source, file: Path) -> None:
    # before datasets narrows the columns, and file by file, for a message that names the file
    try:
        names = pq.read_schema(file).names
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file}: not a readable parquet file ({_reason(error)}); get a new copy") from error
    missing = [name for name in source.columns if name not in names]
    if missing:
        raise UserError(f"{file}: no column {missing[0]!r} of {source.repo}, only {', '.join(names)}")


def _open_hub(source: Source) -> Reading:
    datasets = _datasets()
    import huggingface_hub

    revision = None
    if not huggingface_hub.constants.HF_HUB_OFFLINE:
        # one quick request: datasets itself retries for half a minute where there is no network
        try:
            info = huggingface_hub.HfApi().dataset_info(source.repo, timeout=CONNECT_SECONDS)
        except Exception as error:  # no network, no access, no such data set: each has exceptions of its own
            raise _unreachable(source, error) from error
        revision = info.sha
    try:
        splits = datasets.load_dataset(source.repo, source.config, revision=revision, **_parquet_options(source))
    except Exception as error:
        raise _unreachable(source, error) from error
    if source.split not in splits and len(splits) != 1:
        raise UserError(f"{source.repo} has no split {source.split!r}, only {', '.join(splits)}")
    dataset = splits[source.split] if source.split in splits else next(iter(splits.values()))
    return Reading(source, f"{source.title} on the Hugging Face Hub", dataset, revision)


def _unreachable(source: Source, error: Exception) -> UserError:
    return UserError(
        f"{source.repo} cannot be had from the Hugging Face Hub ({_reason(error)}); its card and licence are at "
        f"{source.card}. Without network, make a copy elsewhere (`{_download(source, Path('DIR'))}`) and pass "
        "--from DIR"
    )


def _download(source: Source, folder: Path) -> str:
    return f"hf download --repo-type dataset {source.repo} --local-dir {folder / source.repo}"


def _parquet_options(source: Source) -> dict[str, Any]:
    """Leave out the columns that nobody wants, and read less than a row group (which may be a million rows) at once."""
    if all(pattern.endswith(".parquet") for pattern in source.files):
        return {"columns": list(source.columns), "batch_size": READ_AHEAD}
    return {}


def _datasets() -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when huggingface_hub is imported
    import datasets

    return datasets


def _reason(error: BaseException) -> str:
    """One line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
