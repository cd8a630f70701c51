"""The storage of a rollout."""

from striderl.compat.rsl_rl.storage.rollout_storage import RolloutStorage as RolloutStorage
