"""The real policy in virtual time: `headrace.scheduler.policy.machine` against simulated executors and workloads."""
