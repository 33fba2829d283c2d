"""A full disk and a read-only one, both real: small file systems in memory that the test mounts."""

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import EVALUATE, EVALUATE_WARM_START, RUN, SCALE, TASK, TRAIN, WARM_START, finish, said
from same import assert_same_evaluation, assert_same_training

TABLE = ("table", "table1", str(RUN), "--out", "out/table1.csv")
FIGURE = ("figure", "fig06_07_reward", str(RUN), "--out", "out/fig06_07_reward.png")


class Disk:
    """A mounted file system of 4 MB with a workspace on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, free: int) -> None:
        """Leave `free` bytes."""
        self._ballast.unlink(missing_ok=True)
        left = os.statvfs(self.folder)
        with self._ballast.open("wb") as file:
            file.write(b"x" * max(left.f_bavail * left.f_frsize - free, 0))

    def clear(self) -> None:
        self._ballast.unlink()

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)


@pytest.fixture
def disk(unbroken: Path, tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is refused here; it takes root")
    try:
        shutil.copytree(unbroken, folder, dirs_exist_ok=True)
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def forget_run(disk: Disk) -> None:
    shutil.rmtree(disk.folder / RUN)


def assert_full(printed: str) -> None:
    line = said(printed)
    assert os.strerror(errno.ENOSPC) in line and "make room, and the same command goes on from there" in line
    path = line.removeprefix("estr: error: ").partition(":")[0]
    assert Path(path).suffix or "state" in path, line


def nothing_half_written(folder: Path) -> bool:
    return not list(folder.rglob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_training_on_a_full_disk_ends_in_one_line_and_goes_on_when_there_is_room(
    seed: int, disk: Disk, unbroken: Path
) -> None:
    needed = sum(path.stat().st_size for path in (unbroken / RUN).rglob("*") if path.is_file())
    forget_run(disk)
    free = int(needed * (seed + random.Random(seed).random()) / 6)
    disk.fill(free)
    printed = finish(disk.folder, *TRAIN, code=1)
    assert_full(printed)
    assert not (disk.folder / RUN / "run.json").exists() and nothing_half_written(disk.folder)
    disk.clear()
    finish(disk.folder, *TRAIN)
    assert_same_training(disk.folder, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 5_000, 60_000])
def test_evaluation_on_a_full_disk_keeps_what_it_has(free: int, disk: Disk, unbroken: Path) -> None:
    folder = disk.folder / WARM_START
    for name in ("samples.jsonl", "evaluation.json"):
        (folder / name).unlink()
    disk.fill(free)
    assert_full(finish(disk.folder, *EVALUATE_WARM_START, code=1))
    assert not (folder / "evaluation.json").exists() and nothing_half_written(disk.folder)
    kept = (folder / "samples.jsonl").read_bytes()
    assert not kept or kept.endswith(b"\n")
    disk.clear()
    finish(disk.folder, *EVALUATE_WARM_START)
    assert (folder / "samples.jsonl").read_bytes().startswith(kept)
    assert_same_evaluation(disk.folder, unbroken, WARM_START)


@pytest.mark.parametrize("command", [TABLE, FIGURE], ids=["table", "figure"])
def test_a_table_and_a_figure_on_a_full_disk_are_whole_or_not_there(command: tuple[str, ...], disk: Disk) -> None:
    finish(disk.folder, *command, scale="")
    wanted = {path.name: path.read_bytes() for path in (disk.folder / "out").iterdir()}
    assert len(wanted) == 3
    for free in (0, 4096, 8192):
        shutil.rmtree(disk.folder / "out")
        disk.fill(free)
        assert_full(finish(disk.folder, *command, scale="", code=1))
        assert nothing_half_written(disk.folder)
        for path in (disk.folder / "out").glob("*"):
            assert path.read_bytes() == wanted[path.name]
        disk.clear()
    finish(disk.folder, *command, scale="")
    assert {path.name: path.read_bytes() for path in (disk.folder / "out").iterdir()} == wanted


@pytest.mark.parametrize(
    "command",
    [TRAIN, EVALUATE, EVALUATE_WARM_START, ("data", "prepare", TASK), ("pretrain", TASK), TABLE, FIGURE],
    ids=["train", "evaluate", "evaluate warm start", "prepare", "pretrain", "table", "figure"],
)
def test_a_read_only_place_is_one_line(command: tuple[str, ...], disk: Disk) -> None:
    if command == TRAIN:
        forget_run(disk)
    disk.make_read_only()
    line = said(finish(disk.folder, *command, scale="" if command in (TABLE, FIGURE) else SCALE, code=1))
    assert os.strerror(errno.EROFS) in line and "mount it for writing, or choose another place" in line
