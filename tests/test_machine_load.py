"""What a run uses of its machine."""

import time
from pathlib import Path

from estr.machine_load import LoadLog, read_load


def test_samples_measure_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "system.jsonl"
    with LoadLog(path, seconds=0.2):
        while len(read_load(path)) < 2:
            sum(range(1_000_000))
    samples = read_load(path)
    assert len(samples) >= 3  # the last one is of the end
    assert max(sample["cpu_utilization_percentage"] for sample in samples) > 10
    assert all(10 < sample["process_memory_megabytes"] < 100_000 for sample in samples)
    assert [sample["time"] for sample in samples] == sorted(sample["time"] for sample in samples)


def test_a_resumed_run_goes_on_and_a_fresh_one_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "system.jsonl"
    for fresh, count in ((False, 1), (False, 2), (True, 1)):
        with LoadLog(path, fresh=fresh, seconds=60):
            pass
        assert len(read_load(path)) == count


def test_a_line_that_was_cut_off_is_no_sample(tmp_path: Path) -> None:
    path = tmp_path / "system.jsonl"
    path.write_text('{"time": 1.0, "x": 2.0}\n{"time": 2.0, "x"')
    assert read_load(path) == [{"time": 1.0, "x": 2.0}]
    assert read_load(tmp_path / "none.jsonl") == []


def test_a_place_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    with LoadLog(tmp_path / "missing" / "system.jsonl", seconds=0.05):
        time.sleep(0.2)
