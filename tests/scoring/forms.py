"""How each rule wants its answer."""

FORM = {
    "gsm8k_strict": "#### {}",
    "gsm8k_flexible": "#### {}",
    "dapo_math": "Answer: {}",
    "aime": "\\boxed{{{}}}",
    "aime_answer_or_box": "Answer: {}",
    "search_r1_em": "<answer>{}</answer>",
    "browsecomp_plus_exact": "Exact Answer: {}",
}
