from striderl.compat.tianshou.base_policy import BasePolicy
