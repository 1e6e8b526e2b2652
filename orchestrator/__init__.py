"""Deciding, and talking to people.

    cli          the commands' names and exit codes; commands/: one file a command; output: the one place that prints
    settings     where things are; context: the open database that most commands begin with
    submitting/  from a job file to a job, and to its end
    head         reads a snapshot, lets the scheduler decide, carries it out; leading/: what that takes
    scheduler    who runs where (pure); scheduling/: its parts
    executor     what the head needs of whatever runs attempts; ray_executor/: that on Ray; cluster/: bringing Ray up
    toolchains/  what they are resolved to, and who builds them
    deciding/    comparisons, trends, gates: what measurements say
    showing/     rows, tables, matrices and progress; reporting/: whole pages; imports/: what others measured
    repeating/   reproduce, verify, bisect
    files/       artifacts, whole variants and databases on their way in and out

`workers` and `db` do not know each other; this package knows both.
"""
