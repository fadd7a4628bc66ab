"""Who may do what, and how two sides prove who they are. Pure but for the key file; knows no
socket, no agent and no client."""
