"""A query's checkpoint as Spark writes it: names, contents, and the rules for going back. Pure.

Nothing here asks a cluster. Who does, the verbs of `diskless query` and the page, brings a listing
and a way to read files (`picture`), and is told the same by the same rules (`rollback_rules`,
`facts`).
"""
