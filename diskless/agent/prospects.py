"""What can be expected of a shard's holder, as far as this agent knows."""

from diskless.agent.roster import Roster
from diskless.errors import AgentGone, DisklessError, Unavailable
from diskless.model import AgentInfo, Stripe


class Prospects:
    def __init__(self, roster: Roster, *, lost_after_s: float) -> None:
        """An agent that has been down for `lost_after_s` is not waited for any more."""
        self._roster = roster
        self._lost_after_s = lost_after_s

    def is_there(self, agent: AgentInfo) -> bool:
        return agent.up and not self._roster.suspects(agent)

    def is_near(self, stripe: Stripe, index: int) -> bool:
        return stripe.places[index].slot == self._roster.slot

    def is_likely(self, stripe: Stripe, index: int) -> bool:
        """Whether the holder of a shard is there, as far as we know."""
        agent = self._roster.holder(stripe.places[index])
        return agent is not None and self.is_there(agent)

    def is_prompt(self, stripe: Stripe, index: int) -> bool:
        """Whether it is likely, and not late."""
        agent = self._roster.holder(stripe.places[index])
        if agent is None or not self.is_there(agent):
            return False
        return not agent.slow or self.is_near(stripe, index)

    def is_late(self, stripe: Stripe, index: int) -> bool:
        """Whether the holder of a shard is known to be slow: then others are asked first."""
        agent = self._roster.holder(stripe.places[index])
        return agent is not None and agent.slow and not self.is_near(stripe, index)

    def may_return(self, stripe: Stripe, index: int, error: DisklessError) -> bool:
        """Whether a shard that could not be had is perhaps only away: its agent is silent, or
        in a life that this agent has not heard of yet. One whose process has ended is not
        waited for once the leader knows it too."""
        place = stripe.places[index]
        agent = self._roster.agents.get(place.slot)
        if agent is None or agent.incarnation < place.incarnation:
            return True
        return (
            agent.incarnation == place.incarnation
            and isinstance(error, Unavailable)
            and (agent.up or not isinstance(error, AgentGone))
            and self._roster.down_s(agent) < self._lost_after_s
        )

    def is_up(self, stripe: Stripe, index: int) -> bool:
        """Whether the leader holds the agent that has a shard to be up."""
        agent = self._roster.holder(stripe.places[index])
        return agent is not None and agent.up
