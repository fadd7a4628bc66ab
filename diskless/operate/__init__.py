"""What operators do with a whole cluster: start, grow, end, restart, adopt, rehearse a restore.

Owns the order of steps and the descriptor. Everything that knows Ray is below, in `launch/`.
"""
