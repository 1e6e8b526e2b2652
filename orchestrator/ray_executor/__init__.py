"""Running attempts on Ray: one agent a node, one placement group an attempt.

    executor     implements orchestrator.executor.Executor: nodes as they come and go, events as they come
    book         what was handed to which nodes, and results that wait to be collected (pure; handed: one attempt)
    handing      handing attempts over
    lines        to the agents of all nodes; line: to one, whose answers come as events; renewing: their leases
    logs         the logs that are followed (pure)
    groups       placement groups, kept for a moment for the next attempt of the same shape
    sameness     what nodes must have in common with the head
    connection   the only module that imports ray; control: a thread for its calls that may hang

Ray decides nothing here: the scheduler says which nodes and which devices; a placement group of that size, pinned to
those nodes, keeps the devices in Ray's books so that other users of the cluster keep off.
"""

from orchestrator.ray_executor.executor import RayExecutor

__all__ = ["RayExecutor"]
