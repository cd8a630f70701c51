"""Functions that rsl_rl's programs import, and the writers of its log."""

from striderl.compat.rsl_rl.utils.logger import LogWriter as LogWriter
from striderl.compat.rsl_rl.utils.logger import NeptuneLogWriter as NeptuneLogWriter
from striderl.compat.rsl_rl.utils.logger import WandbLogWriter as WandbLogWriter
from striderl.compat.rsl_rl.utils.utils import check_nan as check_nan
from striderl.compat.rsl_rl.utils.utils import compile_model as compile_model
from striderl.compat.rsl_rl.utils.utils import get_param as get_param
from striderl.compat.rsl_rl.utils.utils import reduce_gradients_in_buckets as reduce_gradients_in_buckets
from striderl.compat.rsl_rl.utils.utils import resolve_callable as resolve_callable
from striderl.compat.rsl_rl.utils.utils import resolve_class as resolve_class
from striderl.compat.rsl_rl.utils.utils import resolve_nn_activation as resolve_nn_activation
from striderl.compat.rsl_rl.utils.utils import resolve_obs_groups as resolve_obs_groups
from striderl.compat.rsl_rl.utils.utils import resolve_optimizer as resolve_optimizer
from striderl.compat.rsl_rl.utils.utils import split_and_pad_trajectories as split_and_pad_trajectories
from striderl.compat.rsl_rl.utils.utils import unpad_trajectories as unpad_trajectories
