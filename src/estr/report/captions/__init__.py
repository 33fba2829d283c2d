"""What the paper claims in each figure, and what our data show, computed from the plotted numbers of each task."""

from estr.report.captions import curves, efficiency, studies, sweeps, tokens
from estr.report.captions.base import Caption

CAPTIONS: dict[str, Caption] = {
    **tokens.CAPTIONS,
    **curves.CAPTIONS,
    **sweeps.CAPTIONS,
    **efficiency.CAPTIONS,
    **studies.CAPTIONS,
}

__all__ = ["CAPTIONS", "Caption"]
