"""The pool's workers on the nodes of a Ray cluster: `nodes.Cluster` is their Fleet. Only this package imports Ray.

On each GPU of the cluster, or on each node for a processor's target, an `agent.Agent` (a Ray actor, our own code) holds
the device and keeps the worker processes that a pool keeps on one machine. A candidate runs in their jailed children,
as ever; what travels are candidates and verdicts between processes of ours, in Ray's pickles. Ray itself asks nobody
for a name or a key by default: whoever reaches its ports commands its nodes.
"""
