"""A reward with spread for a policy that knows nothing: the parity of the answer's length."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **named):
    return {"score": float(len(solution_str) % 2), "ground_truth_given": float(bool(ground_truth))}
