"""The durable tier: a simulator with a store that fails in every way, and real stores.

`python -m tests.tier --seed N` replays one schedule.
"""
