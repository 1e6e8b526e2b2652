"""Running attempts on Ray: one agent per node, one placement group per attempt.

    executor          implements orchestrator.executor.Executor: follows nodes and handles the agents' events
    in_flight         attempts that were dispatched, and results that wait to be collected
    gangs             one attempt on several nodes: its parts, and one result of all (pure)
    dispatch          dispatching attempts to agents
    agent_clients     clients of the agents of all nodes; agent_client: of one, whose answers come as events
    lease_renewal     the thread that renews the agents' leases
    followed_logs     the logs that are followed (pure)
    placement_groups  placement groups, cached for the next attempt of the same shape
    version_skew      what nodes must have in common with the head
    connection        the only module that imports ray; control_thread: a thread for its calls that may hang

Ray decides nothing here: the scheduler chooses nodes and devices; a placement group of that size, pinned to those
nodes, allocates the devices in Ray's accounting, so that other users of the cluster keep off them.
"""

from orchestrator.ray_executor.executor import RayExecutor

__all__ = ["RayExecutor"]
