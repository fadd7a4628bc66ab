"""The command line: one module per verb, and `main`, the edge where errors become exits.

A verb's module is imported only when the verb is used. Only `up`, `down` and `chaos`
ever import Ray, and those only when they need it.
"""

from diskless.cli.edge import main, run

__all__ = ["main", "run"]
