"""verl's answer-checking tool for multi-turn GSM8K, an oracle."""

from typing import Any

from estr.tools.base import ToolResult, function_schema


class AnswerCheck:
    """The tool `calc_gsm8k_reward(answer)` of verl's multi-turn GSM8K recipe.

    It is an oracle: it compares the submitted answer with the ground truth, and tells the policy the reward before the
    policy commits to a final answer. A policy may submit one guess after the other until the tool says 1.0, so a score
    reached with it is not comparable with a plain GSM8K score. A task that reports plain scores leaves it out of its
    toolbox.

    As in verl, the answer is extracted flexibly (`gsm8k_flexible` here), and the text is verl's. verl's penalty of
    -0.05 for a submission that does not improve is a tool reward, which enters no advantage there; it is left out.
    """

    name = "calc_gsm8k_reward"
    schema = function_schema(
        "calc_gsm8k_reward",
        "Parses the answer and returns its reward: 1.0 if it is correct, 0.0 otherwise.",
        answer="the answer to the problem, a number",
    )

    def __init__(self, ground_truth: str) -> None:
        self._ground_truth = ground_truth

    def call(self, arguments: dict[str, Any]) -> ToolResult:
        from estr.scoring import scoring_rule

        answer: str = arguments["answer"]
        # verl's tool submits the answer in the final answer's own format
        submitted = answer if answer.startswith("#### ") else f"#### {answer}"
        verdict = scoring_rule("gsm8k_flexible").score(submitted, self._ground_truth)
        return ToolResult(f"Current parsed answer={answer!r} reward={float(verdict.correct)}")
