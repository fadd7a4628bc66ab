"""Breaking a live cluster on purpose, within a budget, and judging what it did.

Pure: `schedule`, `budget`, `oracle`, `verdict`. Moving: `faults` plants and undoes, `kv` and
`streams` are traffic, `timeline` watches, `report` writes, `run` puts them together.
"""
