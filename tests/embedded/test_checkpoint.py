import logging
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from estr.embedded.checkpoint import TrainingState, load_state, save_state
from estr.errors import UserError


def state(step: int) -> TrainingState:
    generator = torch.Generator().manual_seed(step)

    def tensors() -> dict[str, torch.Tensor]:
        return {"a.weight": torch.randn(3, 4, generator=generator), "b": torch.randn(2, generator=generator)}

    versions = {v: {k: t.bfloat16() for k, t in tensors().items()} for v in (step - 1, step)}
    moments = {f"{k}/exp_avg": t for k, t in tensors().items()}
    tables = [pa.table({"step": range(1, rows + 1)}) for rows in (step, 3 * step)]
    return TrainingState(step, tensors(), moments, versions, *tables)


def assert_equal(a: TrainingState, b: TrainingState) -> None:
    assert a.step == b.step and a.versions.keys() == b.versions.keys()
    assert a.metrics == b.metrics and a.tokens == b.tokens
    groups = [(a.weights, b.weights), (a.moments, b.moments)]
    groups += [(a.versions[v], b.versions[v]) for v in a.versions]
    for left, right in groups:
        assert left.keys() == right.keys()
        assert all(torch.equal(left[k], right[k]) and left[k].dtype == right[k].dtype for k in left)


def test_newest_state_comes_back_exactly_and_two_are_kept(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        save_state(state(step), tmp_path)
    loaded = load_state(tmp_path)
    assert loaded is not None
    assert_equal(loaded, state(12))
    kinds = ("json", "metrics.parquet", "safetensors", "tokens.parquet")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"step{n:07d}.{kind}" for n in (8, 12) for kind in kinds]


def test_no_state() -> None:
    assert load_state(Path("nowhere")) is None


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        del content[len(content) // 2 :]
    elif how == "bit flipped":
        content[-5] ^= 0x10
    path.unlink() if how == "missing" else path.write_bytes(bytes(content))


@pytest.mark.parametrize("how", ["truncated", "bit flipped", "missing"])
@pytest.mark.parametrize("kind", ["safetensors", "metrics.parquet", "tokens.parquet"])
def test_damage_is_reported_and_the_state_before_it_is_used(
    tmp_path: Path, how: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    save_state(state(4), tmp_path)
    save_state(state(8), tmp_path)
    damage(tmp_path / f"step0000008.{kind}", how)
    with caplog.at_level(logging.WARNING):
        loaded = load_state(tmp_path)
    assert loaded is not None
    assert_equal(loaded, state(4))
    assert "step0000008.json is damaged" in caplog.text and f"step0000008.{kind}: " in caplog.text
    damage(tmp_path / f"step0000004.{kind}", how)
    with pytest.raises(UserError, match="every checkpoint is damaged"):
        load_state(tmp_path)


def test_a_checkpoint_that_never_got_its_note_does_not_exist(tmp_path: Path) -> None:
    save_state(state(4), tmp_path)
    save_state(state(8), tmp_path)
    (tmp_path / "step0000008.json").unlink()
    loaded = load_state(tmp_path)
    assert loaded is not None and loaded.step == 4
    save_state(state(12), tmp_path)
    assert not list(tmp_path.glob("step0000008*"))
