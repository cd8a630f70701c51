"""Experience that was recorded before: filled replays, and their folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.datasets.amp_loader import AMPLoader as AMPLoader
    from striderl.datasets.amp_loader import AMPLoaderConfig as AMPLoaderConfig
    from striderl.datasets.lerobot_reader import LeRobotReader as LeRobotReader
    from striderl.datasets.minari_reader import MinariReader as MinariReader
    from striderl.datasets.motion_clip import ClipError as ClipError
    from striderl.datasets.motion_clip import ClipField as ClipField
    from striderl.datasets.motion_clip import MotionClip as MotionClip
    from striderl.datasets.motion_clip_file import load_clip as load_clip
    from striderl.datasets.motion_clip_file import save_clip as save_clip
    from striderl.datasets.motion_derivation import with_fields as with_fields
    from striderl.datasets.motion_gait import Gait as Gait
    from striderl.datasets.motion_gait import clip_contacts as clip_contacts
    from striderl.datasets.motion_gait import contacts_from_heights as contacts_from_heights
    from striderl.datasets.motion_gait import foot_heights as foot_heights
    from striderl.datasets.motion_gait import measure_gait as measure_gait
    from striderl.datasets.motion_json import JsonLayout as JsonLayout
    from striderl.datasets.motion_json import export_json_clip as export_json_clip
    from striderl.datasets.motion_json import import_json_clip as import_json_clip
    from striderl.datasets.motion_mirror import left_right as left_right
    from striderl.datasets.motion_mirror import standard_fields as standard_fields
    from striderl.datasets.motion_npz import NpzLayout as NpzLayout
    from striderl.datasets.motion_npz import import_npz_clip as import_npz_clip
    from striderl.datasets.offline import all_steps as all_steps
    from striderl.datasets.offline import dataset_about as dataset_about
    from striderl.datasets.offline import load_dataset as load_dataset
    from striderl.datasets.offline import replay_of as replay_of
    from striderl.datasets.offline import save_dataset as save_dataset
    from striderl.datasets.old_pickles import Imported as Imported
    from striderl.datasets.old_pickles import import_old_trajectories as import_old_trajectories
    from striderl.datasets.rollout_dataset import RolloutDataset as RolloutDataset
    from striderl.datasets.rollout_files import DatasetOver as DatasetOver
    from striderl.datasets.rollout_files import RolloutFileBase as RolloutFileBase
    from striderl.datasets.rollout_import import Episode as Episode
    from striderl.datasets.rollout_import import EpisodeSource as EpisodeSource
    from striderl.datasets.rollout_import import replay_of_episodes as replay_of_episodes
    from striderl.datasets.rollout_import import store_episodes as store_episodes
    from striderl.datasets.trajectory_codecs import CODECS as CODECS
    from striderl.datasets.trajectory_codecs import Codec as Codec
    from striderl.datasets.trajectory_codecs import compress_normalized_image as compress_normalized_image
    from striderl.datasets.trajectory_codecs import decompress_normalized_image as decompress_normalized_image
    from striderl.datasets.trajectory_errors import TrajectoryCorrupt as TrajectoryCorrupt
    from striderl.datasets.trajectory_errors import TrajectoryError as TrajectoryError
    from striderl.datasets.trajectory_errors import TrajectoryMismatch as TrajectoryMismatch
    from striderl.datasets.trajectory_errors import TrajectoryMissing as TrajectoryMissing
    from striderl.datasets.trajectory_errors import TrajectoryRefused as TrajectoryRefused
    from striderl.datasets.trajectory_errors import TrajectoryTimeout as TrajectoryTimeout
    from striderl.datasets.trajectory_errors import TrajectoryVersion as TrajectoryVersion
    from striderl.datasets.trajectory_spec import TrajectoryColumn as TrajectoryColumn
    from striderl.datasets.trajectory_spec import TrajectorySpec as TrajectorySpec
    from striderl.datasets.trajectory_store import TrajectoryStore as TrajectoryStore
    from striderl.datasets.trajectory_writer import TrajectoryWriter as TrajectoryWriter

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "amp_loader": [
            "AMPLoader",
            "AMPLoaderConfig",
        ],
        "lerobot_reader": [
            "LeRobotReader",
        ],
        "minari_reader": [
            "MinariReader",
        ],
        "motion_clip": [
            "ClipError",
            "ClipField",
            "MotionClip",
        ],
        "motion_clip_file": [
            "load_clip",
            "save_clip",
        ],
        "motion_derivation": [
            "with_fields",
        ],
        "motion_gait": [
            "Gait",
            "clip_contacts",
            "contacts_from_heights",
            "foot_heights",
            "measure_gait",
        ],
        "motion_json": [
            "JsonLayout",
            "export_json_clip",
            "import_json_clip",
        ],
        "motion_mirror": [
            "left_right",
            "standard_fields",
        ],
        "motion_npz": [
            "NpzLayout",
            "import_npz_clip",
        ],
        "offline": [
            "all_steps",
            "dataset_about",
            "load_dataset",
            "replay_of",
            "save_dataset",
        ],
        "old_pickles": [
            "Imported",
            "import_old_trajectories",
        ],
        "rollout_dataset": [
            "RolloutDataset",
        ],
        "rollout_files": [
            "DatasetOver",
            "RolloutFileBase",
        ],
        "rollout_import": [
            "Episode",
            "EpisodeSource",
            "replay_of_episodes",
            "store_episodes",
        ],
        "trajectory_codecs": [
            "CODECS",
            "Codec",
            "compress_normalized_image",
            "decompress_normalized_image",
        ],
        "trajectory_errors": [
            "TrajectoryCorrupt",
            "TrajectoryError",
            "TrajectoryMismatch",
            "TrajectoryMissing",
            "TrajectoryRefused",
            "TrajectoryTimeout",
            "TrajectoryVersion",
        ],
        "trajectory_spec": [
            "TrajectoryColumn",
            "TrajectorySpec",
        ],
        "trajectory_store": [
            "TrajectoryStore",
        ],
        "trajectory_writer": [
            "TrajectoryWriter",
        ],
    },
)
