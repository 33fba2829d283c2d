import pytest

from estr.llm.problems import closeness, word_problems


def test_problems_follow_from_the_seed() -> None:
    first, again, other = word_problems(6, 3), word_problems(4, 3), word_problems(6, 4)
    assert first[:4] == again
    assert first != other
    assert len({problem.question for problem in first}) == 6
    assert all(problem.prompt[0]["content"].startswith(problem.question) for problem in first)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("so 3 + 4 = 7. #### 7", 1.0),
        ("#### 1,250", 1.0 / (1 + 1243 / 7)),
        ("about 3.5", 1 / 1.5),
        ("it falls to -7", 1 / 3),
        ("7 apples, or 14", 0.5),
        ("no number at all", 0.0),
        ("", 0.0),
    ],
)
def test_closeness_of_the_last_number(response: str, expected: float) -> None:
    assert closeness(response, 7.0) == pytest.approx(expected)


def test_closeness_is_relative_above_one_and_absolute_below() -> None:
    assert closeness("200", 100.0) == pytest.approx(0.5)
    assert closeness("1", 0.0) == pytest.approx(0.5)
