"""Models: networks from observation groups to actions or values."""

from striderl.compat.rsl_rl.models.cnn_model import CNNModel as CNNModel
from striderl.compat.rsl_rl.models.mlp_model import MLPModel as MLPModel
from striderl.compat.rsl_rl.models.rnn_model import RNNModel as RNNModel
