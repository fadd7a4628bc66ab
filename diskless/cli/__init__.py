"""The command line: one module per verb, and `main`, the edge where errors become exits.

A verb's module is imported only when the verb is used. Ray is imported only by verbs that start,
end or look into agents' processes, and only when they need it.
"""

from diskless.cli.edge import main, run

__all__ = ["main", "run"]
