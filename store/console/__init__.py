"""SQL for people who are elsewhere: each query has a process of its own, with limits that no query passes.

DuckDB can stop a query only between two tasks, and its limit of memory does not count what a function makes: one
`levenshtein` of two long texts runs for hours, one `list_sort` takes gigabytes. So the query runs in another process,
which is killed when its time is over and which the system refuses more memory.
"""

from .asking import AT_ONCE as AT_ONCE
from .asking import Console as Console
from .asking import Limits as Limits
from .terms import Column as Column
from .terms import Shown as Shown
from .terms import Written as Written
