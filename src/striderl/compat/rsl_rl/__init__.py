"""rsl_rl 5's own classes: write `striderl.compat.rsl_rl` for `rsl_rl` in every import, and override any method.

    from striderl.compat.rsl_rl.algorithms import PPO                    was: from rsl_rl.algorithms import PPO
    from striderl.compat.rsl_rl.runners import OnPolicyRunner            was: from rsl_rl.runners import OnPolicyRunner

    env          VecEnv                          what a runner steps
    runners      OnPolicyRunner ─▶ algorithm     class_name of the config: 'PPO', 'package.module:Class', or a class
    algorithms   PPO, Distillation ─▶ models, storage, extensions
    models       MLPModel, RNNModel, CNNModel ─▶ modules: MLP, RNN, CNN, normalisers, distributions

Modules, files and class names are rsl_rl's, and so are the keys of its `.pt` files. Everything here is eager and open;
`striderl.training.OnPolicyRunner` reads the same configs and trains with the compiled learners of this library.
Observations are TensorDicts (`pip install tensordict`).
"""
