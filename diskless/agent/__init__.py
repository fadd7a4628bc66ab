"""The working parts of an agent. They reach other agents only through `agent.ports`."""
