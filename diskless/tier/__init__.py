"""The durable tier: what was acknowledged, in a place that outlives every machine.

A tier is a *chain* of numbered manifests, each of which names a whole prefix of the log, and
*segments* with files' bytes. Knows nothing of agents, of gRPC and of what journal and picture
mean: to it they are bytes. The only home of the object-store library.
"""
