"""What only a leader does, while it leads.

A `Leader` starts with a view and stops with it. Nothing in this package outlives a view: the
next leader, or this one in a later view, starts from the namespace alone.
"""

from diskless.agent.leading.leader import Leader

__all__ = ["Leader"]
