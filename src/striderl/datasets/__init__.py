"""Experience that was recorded before: filled replays, and their folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.datasets.motion.amp_loader import AMPLoader as AMPLoader
    from striderl.datasets.motion.amp_loader import AMPLoaderConfig as AMPLoaderConfig
    from striderl.datasets.motion.amp_loader import with_fields as with_fields
    from striderl.datasets.motion.clip import ClipError as ClipError
    from striderl.datasets.motion.clip import ClipField as ClipField
    from striderl.datasets.motion.clip import MotionClip as MotionClip
    from striderl.datasets.motion.clip import left_right as left_right
    from striderl.datasets.motion.clip_files import NpzLayout as NpzLayout
    from striderl.datasets.motion.clip_files import import_npz_clip as import_npz_clip
    from striderl.datasets.motion.clip_files import load_clip as load_clip
    from striderl.datasets.motion.clip_files import save_clip as save_clip
    from striderl.datasets.motion.gait import Gait as Gait
    from striderl.datasets.motion.gait import clip_contacts as clip_contacts
    from striderl.datasets.motion.gait import measure_gait as measure_gait
    from striderl.datasets.motion.json_clips import JsonLayout as JsonLayout
    from striderl.datasets.motion.json_clips import export_json_clip as export_json_clip
    from striderl.datasets.motion.json_clips import import_json_clip as import_json_clip
    from striderl.datasets.offline import all_steps as all_steps
    from striderl.datasets.offline import load_dataset as load_dataset
    from striderl.datasets.offline import replay_of as replay_of
    from striderl.datasets.offline import save_dataset as save_dataset
    from striderl.datasets.playback.base import DatasetOver as DatasetOver
    from striderl.datasets.playback.base import RolloutFileBase as RolloutFileBase
    from striderl.datasets.playback.dataset import RolloutDataset as RolloutDataset
    from striderl.datasets.readers.episodes import Episode as Episode
    from striderl.datasets.readers.episodes import EpisodeSource as EpisodeSource
    from striderl.datasets.readers.episodes import replay_of_episodes as replay_of_episodes
    from striderl.datasets.readers.episodes import store_episodes as store_episodes
    from striderl.datasets.readers.lerobot import LeRobotReader as LeRobotReader
    from striderl.datasets.readers.minari import MinariReader as MinariReader
    from striderl.datasets.readers.old_pickles import import_old_trajectories as import_old_trajectories
    from striderl.datasets.trajectories.codecs import compress_normalized_image as compress_normalized_image
    from striderl.datasets.trajectories.spec import TrajectoryCorrupt as TrajectoryCorrupt
    from striderl.datasets.trajectories.spec import TrajectoryError as TrajectoryError
    from striderl.datasets.trajectories.spec import TrajectoryMismatch as TrajectoryMismatch
    from striderl.datasets.trajectories.spec import TrajectoryMissing as TrajectoryMissing
    from striderl.datasets.trajectories.spec import TrajectoryRefused as TrajectoryRefused
    from striderl.datasets.trajectories.spec import TrajectoryTimeout as TrajectoryTimeout
    from striderl.datasets.trajectories.spec import TrajectoryVersion as TrajectoryVersion
    from striderl.datasets.trajectories.store import TrajectoryStore as TrajectoryStore
    from striderl.datasets.trajectories.writer import TrajectoryWriter as TrajectoryWriter

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "motion.amp_loader": ["AMPLoader", "AMPLoaderConfig", "with_fields"],
        "motion.clip": ["ClipError", "ClipField", "MotionClip", "left_right"],
        "motion.clip_files": ["NpzLayout", "import_npz_clip", "load_clip", "save_clip"],
        "motion.gait": ["Gait", "clip_contacts", "measure_gait"],
        "motion.json_clips": ["JsonLayout", "export_json_clip", "import_json_clip"],
        "offline": ["all_steps", "load_dataset", "replay_of", "save_dataset"],
        "playback.base": ["DatasetOver", "RolloutFileBase"],
        "playback.dataset": ["RolloutDataset"],
        "readers.episodes": ["Episode", "EpisodeSource", "replay_of_episodes", "store_episodes"],
        "readers.lerobot": ["LeRobotReader"],
        "readers.minari": ["MinariReader"],
        "readers.old_pickles": ["import_old_trajectories"],
        "trajectories.codecs": ["compress_normalized_image"],
        "trajectories.spec": [
            "TrajectoryCorrupt",
            "TrajectoryError",
            "TrajectoryMismatch",
            "TrajectoryMissing",
            "TrajectoryRefused",
            "TrajectoryTimeout",
            "TrajectoryVersion",
        ],
        "trajectories.store": ["TrajectoryStore"],
        "trajectories.writer": ["TrajectoryWriter"],
    },
    unlisted={
        "motion.clip": ["standard_fields"],
        "motion.gait": ["contacts_from_heights", "foot_heights"],
        "offline": ["dataset_about"],
        "readers.old_pickles": ["Imported"],
        "trajectories.codecs": ["CODECS", "Codec", "decompress_normalized_image"],
        "trajectories.spec": ["TrajectoryColumn", "TrajectorySpec"],
    },
)
