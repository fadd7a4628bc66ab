"""What an agent shows of itself and of the cluster over HTTP: metrics, and a page."""
