"""Starting and stopping agents: in this process, or as Ray actors."""
