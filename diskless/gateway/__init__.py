"""The door for clients: frames over a Unix socket and TCP."""
