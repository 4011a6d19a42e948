"""Run jobs on a Ray cluster, and a job in a process of one."""
