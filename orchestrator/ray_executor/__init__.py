"""Running attempts on Ray: one agent a node, one placement group an attempt.

    executor     what runs where, what came of it: implements orchestrator.executor.Executor
    handed       an attempt that one node has, or several as a gang (pure)
    line         calls of one agent, whose answers come as events
    renewing     the thread that renews the agents' leases
    groups       placement groups, kept for a moment for the next attempt of the same shape
    connection   the only module that imports ray

Ray decides nothing here: the scheduler says which nodes and which devices; a placement group of that size, pinned to
those nodes, keeps the devices in Ray's books so that other users of the cluster keep off.
"""

from orchestrator.ray_executor.executor import RayExecutor

__all__ = ["RayExecutor"]
