"""Advice from what was measured: how often to checkpoint, and what to set for it. Pure.

`intervals` is the model, `rates` says how often something fails and how sure that is, `records`
reads notes of batches and events of the log, and `choose` makes settings of all of it. Nothing here
asks a cluster; who does (`spark.queries.measure`) brings what it was told.
"""
