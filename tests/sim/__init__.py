"""A simulator of the replicated namespace: seeded, breaking things, then healing.

Five nouns: `world` (voters, network, clocks), `clients` (traffic), `nemesis` (faults),
`model` and `checker` (what must hold). `python -m tests.sim --seed N` replays one.
"""
