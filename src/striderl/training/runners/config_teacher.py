"""The teacher's part of an algorithm's config, in the words of st_rl and of the parkour code.

{"class_name": "TPPO", "teacher_policy": {"class_name": "ActorCritic", "teacher_ac_path": "logs/…", …}, …}        st_rl
{"teacher_policy_class_name": "ActorCritic", "teacher_ac_path": "logs/…", "teacher_policy": {…}, …}             parkour
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.training.runners.config_keys import Keys
from striderl.training.runners.runner_config import TeacherSettings

PATH, CLASS = "teacher_ac_path", "class_name"
"""Where a teacher's weights are, and what it is."""


def read_teacher(keys: Keys) -> TeacherSettings:
    """Take what belongs to teacher and distillation out of an algorithm's dict."""
    own = tuple(each.name for each in fields(TPPOConfig) if each.name != "ppo")
    teacher = keys.take("teacher_policy", {})
    beside = {PATH: keys.take(PATH), CLASS: keys.take("teacher_policy_class_name")}
    found = {name: value for name, value in beside.items() if value is not None}
    if found:
        if not isinstance(teacher, Mapping):
            raise ValueError(f"{keys.where} has {sorted(found)} beside a teacher that is given as an object; keep one")
        twice = sorted(set(found) & set(teacher))
        if twice:
            raise ValueError(f"{keys.where} has {twice} twice, beside 'teacher_policy' and in it; keep one")
        teacher = {**teacher, **found}
    settings: dict[str, Any] = keys.take_all(own)
    return TeacherSettings(teacher=teacher, config=TPPOConfig(**settings))
