"""Agents as Ray actors, or in this process; the only part that knows Ray."""
