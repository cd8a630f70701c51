"""Contact forces as Gymnasium reads them: mj_rnePostConstraint on each env's MjData after the step.

MuJoCo computes `cfrc_ext` inside a step only for sensors that need it, and with the Runge-Kutta integrator of Ant and
Humanoid for another stage of the step than the one whose data remains. Gymnasium calls the function afterwards, on
what remains. MuJoCo's batch has no such call, so this is the one place with a loop over envs: about 10 µs for each env
that touches something, where a step of an Ant takes 170.
"""

from __future__ import annotations

import mujoco
import numpy as np

from striderl.envs.mujoco.simulation import Float, Simulation


class ExternalForces:
    """Measures the forces from outside on every body, for simulations that keep one MjData per env."""

    def __init__(self, simulation: Simulation) -> None:
        if not simulation.batch.persistent:
            raise ValueError("ExternalForces reads each env's MjData, so its simulation must be persistent")
        self._simulation = simulation
        self._data = mujoco.MjData(simulation.model)
        self._contacts = simulation.bind("ncon")
        self._applied: Float = simulation.bind("xfrc_applied")

    def measure(self, out: Float) -> None:
        """Write the torque and force on each body into out, [N, bodies, 6]."""
        out[:] = 0.0
        # without contacts and applied forces they are zero, and there is nothing to compute
        busy = (self._contacts > 0) | self._applied.any(axis=(1, 2))
        model, data, batch = self._simulation.model, self._data, self._simulation.batch
        for env in np.flatnonzero(busy).tolist():
            batch.get_data(env, data)
            mujoco.mj_rnePostConstraint(model, data)
            out[env] = data.cfrc_ext
