"""The namespace: commands in, answers out; a pure function of its log."""
