"""What the page shows of an env: the robot in three dimensions by mjviser, or rendered pictures.

    MujocoScene      poses ─▶ forward kinematics ─▶ body positions ─▶ mjviser's scene; two tracks stand side by side
    PictureScene     pictures ─▶ images in a panel of the page; two tracks below each other

Both have `show(tracks, back, env_index)`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from striderl.cli.view.track import Track
from striderl.data.naming import missing_extra

_PLANE = 0  # mjtGeom
_LABEL_HEIGHT = 0.35
_BLANK = np.full((120, 160, 3), 235, np.uint8)


class TrackScene(Protocol):
    """Shows one moment of every track."""

    def show(self, tracks: Sequence[Track], back: int, env_index: int) -> None:
        """Show the env so many steps ago."""


class MujocoScene:
    """Robots of one model, a track each."""

    def __init__(self, server: Any, tracks: Sequence[Track]) -> None:
        """Draw the model once for every track, and look at it from a fitting distance."""
        try:
            import mujoco
            from mjviser import ViserMujocoScene
        except ImportError as error:
            raise ImportError(missing_extra("mjviser", "view", purpose="The view of a MuJoCo task")) from error
        self._mujoco = mujoco
        self._model = copy.copy(tracks[0].model)  # mjviser changes how decorations of the model look
        self._data = mujoco.MjData(self._model)
        server.scene.reset()
        server.scene.set_up_direction("+z")
        self._scene = ViserMujocoScene(server, self._model, len(tracks))
        self._apart = 2.0 * self._size(tracks) if len(tracks) > 1 and is_flat(self._model) else 0.0
        self._labels = [
            server.scene.add_label(f"/label_{track.label}", track.label, anchor="bottom-center")
            for track in tracks
            if len(tracks) > 1
        ]
        distance = max(1.0, 2.5 * self._size(tracks)) * (1.4 if len(tracks) > 1 else 1.0)
        server.initial_camera.position = (0.65 * distance, -0.75 * distance, 0.5 * distance)
        server.initial_camera.look_at = (0.0, 0.5 * self._apart, 0.0)

    def show(self, tracks: Sequence[Track], back: int, env_index: int) -> None:
        """Put every body where it was."""
        places = [self._bodies(track, back, env_index) for track in tracks]
        positions = np.stack([position for position, _ in places])
        rotations = np.stack([rotation for _, rotation in places])
        for row in range(1, len(tracks)):
            # beside the first one, whatever way they have walked: what differs is how, not where
            positions[row] += positions[0, 1] - positions[row, 1] if self._apart else 0.0
            positions[row, :, 1] += row * self._apart
        centre = positions[0, 1] if len(positions[0]) > 1 else np.zeros(3)
        self._scene.update_from_arrays(positions, rotations, env_idx=0)
        for row, label in enumerate(self._labels):
            label.position = positions[row, 1] - centre + (0.0, 0.0, _LABEL_HEIGHT)

    def _bodies(self, track: Track, back: int, env_index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        pose = track.at(back).pose
        if pose is not None and np.isfinite(pose[env_index]).all():
            self._data.qpos[:] = pose[env_index]
            self._mujoco.mj_kinematics(self._model, self._data)
        return np.array(self._data.xpos), np.array(self._data.xmat).reshape(-1, 3, 3)

    def _size(self, tracks: Sequence[Track]) -> float:
        """Return how large the robot is, m: the diagonal of the box around its bodies."""
        positions, _ = self._bodies(tracks[0], len(tracks[0].moments), 0)
        return float(np.clip(np.linalg.norm(np.ptp(positions[1:], axis=0)), 0.3, 4.0)) if len(positions) > 1 else 1.0


class PictureScene:
    """Rendered pictures, a track each."""

    def __init__(self, server: Any, tracks: Sequence[Track]) -> None:
        """Make a panel for the pictures."""
        self._panel = server.gui.add_panel()
        tab = self._panel.add_tab("Picture")
        self._panel.dock_left()
        self._panel.set_width(480.0)
        with tab:
            self._images = [
                server.gui.add_image(_BLANK, label=track.label if len(tracks) > 1 else None, jpeg_quality=85)
                for track in tracks
            ]
        self._shown: list[object] = [None for _ in tracks]

    def show(self, tracks: Sequence[Track], back: int, env_index: int) -> None:
        """Show the pictures that were rendered; of the env that was picked then."""
        del env_index
        for row, (image, track) in enumerate(zip(self._images, tracks)):
            picture = track.at(back).picture
            if picture is not None and picture is not self._shown[row]:
                self._shown[row] = picture
                image.image = picture.frame()

    def remove(self) -> None:
        """Take the panel away."""
        self._panel.remove()


def is_flat(model: Any) -> bool:
    """Return whether the ground is one plane, on which a robot may stand anywhere."""
    fixed = [index for index in range(model.ngeom) if model.geom_bodyid[index] == 0]
    return all(int(model.geom_type[index]) == _PLANE for index in fixed)
