"""A small gridworld with walls, a known shortest path and a mask of the moves that are possible.

S..#        S start, G goal, # wall, . free; moves are 0 up, 1 right, 2 down, 3 left
.#..        the observation is the cell as one-hot, row by row, and 'action_mask' [4] marks the moves that lead
...G        somewhere; shortest path here: 5 moves
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from striderl.data.actions import DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome, one_hot
from striderl.envs.vec_env import Actions, Obs

_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """The map of a `Grid`."""

    rows: tuple[str, ...] = ("S..#", ".#..", "...G")
    """One string per row of 'S', 'G', '#' and '.'; all of one length, with one start and one goal."""
    max_episode_length: int = 50
    """Steps after which an episode is truncated; 0 for never."""

    def __post_init__(self) -> None:
        cells = "".join(self.rows)
        if len({len(row) for row in self.rows}) != 1 or set(cells) - set("SG#."):
            raise ValueError(f"a grid has rows of one length made of S, G, # and '.', found {self.rows}")
        if cells.count("S") != 1 or cells.count("G") != 1:
            raise ValueError(f"a grid has one S and one G, found {cells.count('S')} and {cells.count('G')}")


class Grid(ToyEnv):
    """Walk from S to G; every step costs 1 and arriving ends the episode. A move into a wall stays where it is."""

    SAVED_NAME: ClassVar[str] = "Grid"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: GridConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or GridConfig()
        self._cells = "".join(self.config.rows)
        neighbours = _neighbours(self.config.rows)
        self._distance = _distances(neighbours, self._cells.index("G"))
        if self._distance[self._cells.index("S")] < 0:
            raise ValueError(f"no way leads from S to G in {self.config.rows}")
        size = len(self._cells)
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec(
                {
                    "cell": ComponentSpec(shape=(size,)),
                    "action_mask": ComponentSpec(shape=(4,), dtype="bool", group="action_mask"),
                }
            ),
            action_spec=DiscreteSpec(n=4, mask="action_mask"),
            max_episode_length=self.config.max_episode_length,
            first_env_index=first_env_index,
        )
        self._neighbours = torch.tensor(neighbours, device=self.device)
        self._allowed = self._neighbours != torch.arange(size, device=self.device)[:, None]

    def shortest_path(self) -> int:
        """Return the number of moves from start to goal."""
        return self._distance[self._cells.index("S")]

    def optimal_return(self) -> float:
        """Return the best sum of rewards of an episode: minus the shortest path."""
        return -float(self.shortest_path())

    def value(self, gamma: float) -> Tensor:
        """Return the best value of every cell [cells], -(1 - gamma^d) / (1 - gamma) at distance d; 0 off the map."""
        distance = torch.tensor(self._distance, dtype=torch.float64).clamp(min=0)
        return -(1.0 - gamma**distance) / (1.0 - gamma)

    def best_actions(self, obs: Obs) -> Tensor:
        """Return a move on a shortest path for every env, int64 [N]."""
        distance = torch.tensor(self._distance, device=self.device)
        cell = obs["cell"].argmax(1)
        ahead = distance[self._neighbours[cell]]
        return torch.where(obs["action_mask"], ahead, 2**30).argmin(1)

    def _start(self, words: Tensor) -> State:
        return {"cell": torch.full_like(words[:, 0], self._cells.index("S"))}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        cell = self._neighbours[state["cell"], actions]
        arrived = cell == self._cells.index("G")
        return ToyOutcome({"cell": cell}, -torch.ones(self.num_envs, device=self.device), arrived, self._never(), {})

    def _observe(self, state: State) -> Obs:
        return {"cell": one_hot(state["cell"], len(self._cells)), "action_mask": self._allowed[state["cell"]]}


def _neighbours(rows: tuple[str, ...]) -> list[list[int]]:
    """Return for every cell where each of the four moves leads; into a wall or off the map leads nowhere."""
    height, width = len(rows), len(rows[0])
    table = []
    for cell in range(height * width):
        row, column = divmod(cell, width)
        reached = []
        for down, right in _MOVES:
            there = (row + down, column + right)
            free = 0 <= there[0] < height and 0 <= there[1] < width and rows[there[0]][there[1]] != "#"
            reached.append(there[0] * width + there[1] if free else cell)
        table.append(reached)
    return table


def _distances(neighbours: list[list[int]], goal: int) -> list[int]:
    """Return the moves from every cell to the goal by breadth-first search; -1 where there is no way."""
    distance = [-1] * len(neighbours)
    distance[goal] = 0
    waiting = deque([goal])
    while waiting:
        cell = waiting.popleft()
        for origin, reached in enumerate(neighbours):
            if cell in reached and distance[origin] < 0:
                distance[origin] = distance[cell] + 1
                waiting.append(origin)
    return distance
