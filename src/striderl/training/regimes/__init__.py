"""How an iteration goes: fresh rollouts, replay, or a dataset. One regime per kind of plan."""
