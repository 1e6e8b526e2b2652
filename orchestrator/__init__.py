"""Decides what runs where, and talks to users.

The packages, from top to bottom; each imports only those below it (`pyproject.toml`):

    cli, commands    one module a command
    reports          the report page
    reruns           verify, bisect, reproduce, interleaved comparisons
    follow           waiting for a job
    views            rows and tables as users see them
    submission, imports, artifacts    from job files to plans; files of other programs; artifacts by name
    leader           the head's loop and its parts
    analysis         comparisons, trends, gates, noise
    ray_executor     attempts on Ray; ray_cluster: Ray's processes
    scheduler        who runs where (pure)
    toolchains       toolchain specs and how they are resolved
"""
