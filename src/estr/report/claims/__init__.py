"""The claims scoreboard: each claim of the paper (configs/paper/claims.yaml) against the results on disk.

| module | |
|---|---|
| `definitions` | the claims and their predicates, validated |
| `evidence` | what the study has, loaded once and on demand |
| `outcome`, `spread` | verdicts; intervals over seeds and steps |
| `theory`, `scaling`, `accuracy`, `stability`, `masking`, `dynamics`, `ablations`, `efficiency` | the checks |
| `checks` | all checks by the name that claims.yaml calls them by |
| `scoreboard` | the table |

A check is a function of the evidence and of the thresholds of its predicate, which are keyword arguments without
defaults: claims.yaml states all of them. It returns an `Outcome`, or raises `NoData` or `NotComputable`.
"""
