"""`estr diagnose`: what each keep rule would drop from the tokens of a run trained elsewhere.

`read_dump` reads the tokens, `examine` judges them with every rule, `record` and `text` say what was found,
`write_kept` adds the verdicts to the rows, and `estr.diagnose.figure` draws them. docs/diagnose.md explains the input
and how to read the output.
"""

from estr.diagnose.dump import Dump, read_dump
from estr.diagnose.output import record, text, write_kept
from estr.diagnose.verdicts import Diagnosis, examine

__all__ = ["Diagnosis", "Dump", "examine", "read_dump", "record", "text", "write_kept"]
