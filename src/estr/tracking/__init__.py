"""MLflow as the lab book of the reproduction. The files under `results/` stay the record; MLflow is a view of them.

An MLflow experiment per experiment of the paper holds a parent run per commit, below it every training run, below that
its evaluation. A run that several experiments share is logged once, in full, in the first of them; the others have an
entry with its last values and a link. Losing the store loses nothing: `estr track import` makes it again.

| module | |
|---|---|
| `catalogue` | which experiments need a run, and which claims it serves |
| `pages` | names, tags and markdown descriptions |
| `store` | `Study`: where a reproduction is tracked; opening it |
| `runs` | the MLflow run of a training run |
| `follow` | a training followed while it runs, whatever becomes of the server |
| `book` | importing complete runs, publishing tables, figures and the report |
| `views` | saved filters and columns of the runs' table |
"""

from estr.tracking.book import import_runs, publish
from estr.tracking.catalogue import Catalogue, load_catalogue
from estr.tracking.follow import Follower
from estr.tracking.runs import RunTracker
from estr.tracking.store import Study, default_uri, open_study
from estr.tracking.views import VIEWS, link_of

__all__ = [
    "VIEWS",
    "Catalogue",
    "Follower",
    "RunTracker",
    "Study",
    "default_uri",
    "import_runs",
    "link_of",
    "load_catalogue",
    "open_study",
    "publish",
]
