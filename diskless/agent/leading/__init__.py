"""What only a leader does, for as long as it leads.

`Leader` begins with a view and ends with it. Nothing in this package outlives a view: the
next leader, or this one in a later view, begins from the namespace alone.
"""

from diskless.agent.leading.leader import Leader

__all__ = ["Leader"]
