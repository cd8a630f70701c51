"""The built-in quadruped in one place: robot, terrain, sight, rewards, and the tasks made of them.

robot ─┐
terrain, sight ─┼─▶ base ─▶ velocity (flat, rough, blind, depth), parkour ─▶ tasks
commands, rewards ─┘         trot: motions of the same robot, without simulation
"""
