"""The moving parts of an agent. They reach others only through `agent.ports`."""
