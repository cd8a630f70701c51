"""What PPO may learn beside its task: novelty and symmetry."""

from striderl.compat.rsl_rl.extensions.rnd import RandomNetworkDistillation as RandomNetworkDistillation
from striderl.compat.rsl_rl.extensions.rnd import resolve_rnd_config as resolve_rnd_config
from striderl.compat.rsl_rl.extensions.symmetry import Symmetry as Symmetry
from striderl.compat.rsl_rl.extensions.symmetry import resolve_symmetry_config as resolve_symmetry_config
