"""Programs written for Tianshou 0.3: its names, under modules called as its own.

from tianshou.data import Batch, Collector         from striderl.compat.tianshou.data import Batch, Collector
from tianshou.env import DummyVectorEnv            from striderl.compat.tianshou.env import DummyVectorEnv
from tianshou.policy import DQNPolicy              from striderl.compat.tianshou.policy import DQNPolicy
from tianshou.trainer import offpolicy_trainer     from striderl.compat.tianshou.trainers import offpolicy_trainer
from tianshou.exploration import OUNoise           from striderl.compat.tianshou.exploration import OUNoise
from tianshou.utils.net.common import Net          from striderl.compat.tianshou.net.common import Net
from tianshou.utils import MovAvg                  from striderl.compat.tianshou.trainers import MovAvg
"""
