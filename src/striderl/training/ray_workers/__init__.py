"""Rollout workers as Ray actors: envs on other processes and machines, one learner here.

    learner ── weights, version v ──▶ object store ──▶ worker 0   envs 0 … 7      its own Collector
       ▲                                          ├──▶ worker 1   envs 8 … 15
       └── rollouts [T, n], made by version v ◀───┴──▶ worker 2   envs 16 … 23    an actor anywhere in the cluster

    synchronous     a rollout of every worker with the newest weights: what one process with all envs collects, to the
                    bit but for matrix products of fewer rows
    asynchronous    every worker is always collecting; the learner takes the first rollouts that are there, which are
                    a few versions old: `impala` corrects for that by V-trace, learners from replay need not

A worker has one rollout under way or waiting, so memory and staleness are bounded; one that is older than
`max_staleness` versions is dropped and counted. With a rollout a worker returns its state. When it dies, another one is
started anywhere in the cluster, gets that state and repeats the rollout: nothing is lost, and with the synchronous
schedule no bit differs. Only workers import the simulator; the learner gets specs. Scheduling, transport and placement
are Ray's: a worker that finds no free core waits for a node to join.
"""
