"""`ViewPage`: a session in the browser, with viser's elements.

    ┌ scene or pictures ───────────────┬ panel ───────────────────────────────┐
    │                                  │ policy, return, time, problem        │
    │            robot                 │ Play   Rewards   Observations   Run  │
    │                                  │ pause, step, push, commands, curves  │
    └──────────────────────────────────┴──────────────────────────────────────┘

viser calls back from threads of its own; what a click asks for is put into a queue and done by the thread that steps
the env, between two steps. While no page is open the env rests, so that a training beside it has the cores.
Texts out of files are escaped: a run folder may come from anywhere.
"""

from __future__ import annotations

import html
import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.checkpoint.errors import CheckpointError
from striderl.cli.terminal import UsageError, message_of
from striderl.cli.view.scene import MujocoScene, PictureScene, TrackScene
from striderl.cli.view.session import ViewSession
from striderl.cli.view.track import Session
from striderl.loggers.plots import RunMetrics, read_metrics

POLL_SECONDS = 1.0
"""How often the run folder is looked at."""
SCENE_SECONDS = 1 / 30
"""How often the scene is drawn at most."""
TEXT_SECONDS = 0.2
"""How often the numbers are written."""
CHART_SECONDS = 0.5
"""How often the curves are drawn."""
MAX_LINES = 12
"""How many entries of a component are drawn."""
MAX_POINTS = 2000
"""How many rows of a long log are read for its curve."""
PUSHES = {"forward": (1.0, 0.0), "back": (-1.0, 0.0), "left": (0.0, 1.0), "right": (0.0, -1.0)}
SPEEDS = {"1/4": 0.25, "1/2": 0.5, "1": 1.0, "2": 2.0, "4": 4.0}
COLOURS = (
    *("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f"),
    *("#1e3a8a", "#f87171", "#065f46", "#92400e", "#c4b5fd", "#155e75", "#f9a8d4", "#a3e635"),
)
NOTHING = "nothing"
_PRINCIPAL = ("evaluate/return_mean", "collect/return_mean", "collect/episode/return")


class ViewPage:
    """The elements of the page, and the loop that keeps them true."""

    def __init__(self, server: Any, session: Session) -> None:
        """Build the elements."""
        self._server, self._session, self._gui = server, session, server.gui
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._speed = 1.0
        self._drawn: dict[str, tuple[object, ...]] = {}
        self._metrics: RunMetrics | None = None
        self._metrics_seen: object = None
        self._notice = ""
        self._gui.set_panel_label(f"striderl: {session.title}")
        self._gui.configure_theme(control_width="large", show_logo=False, show_share_button=False)
        self._gui.main_panel.dock_right()
        self._gui.main_panel.set_width(460.0)
        self._facts = self._gui.add_html("")
        self._scene = self._make_scene()
        tabs = self._gui.add_tab_group()
        with tabs.add_tab("Play"):
            self._make_play()
        with tabs.add_tab("Rewards"):
            self._rewards = Chart(self._gui, "terms per step, over seconds")
            self._reward_table = self._gui.add_html("")
        with tabs.add_tab("Observations"):
            self._make_observations()
        with tabs.add_tab("Run"):
            self._make_run()
        self._read_metrics()
        self.show()

    # -- elements ------------------------------------------------------------------------------------------------------

    def _make_scene(self) -> TrackScene:
        if isinstance(getattr(self, "_scene", None), PictureScene):
            self._scene.remove()  # type: ignore[attr-defined]
        tracks = self._session.tracks
        if tracks[0].model is not None:
            return MujocoScene(self._server, tracks)
        return PictureScene(self._server, tracks)

    def _make_play(self) -> None:
        session, gui = self._session, self._gui
        self._pause = gui.add_button("Pause")
        self._pause.on_click(lambda _: self._later(self._toggle_pause))
        gui.add_button("Step").on_click(lambda _: self._later(session.step_once))
        longest = max(
            len(track.moments) if not session.abilities.live else track.moments.maxlen or 0 for track in session.tracks
        )
        self._back = gui.add_slider("steps back", min=0, max=max(longest - 1, 1), step=1, initial_value=session.back)
        self._on_change(self._back, lambda value: self._look_back(int(value)))
        speed = gui.add_dropdown("speed", tuple(SPEEDS), initial_value="1")
        self._on_change(speed, lambda value: setattr(self, "_speed", SPEEDS[value]))
        if isinstance(session, ViewSession):
            self._make_live(session)

    def _make_live(self, session: ViewSession) -> None:
        gui = self._gui
        gui.add_button("New episode").on_click(lambda _: self._later(session.restart))
        if session.num_envs > 1:
            env = gui.add_slider("env", min=0, max=session.num_envs - 1, step=1, initial_value=session.env_index)
            self._on_change(env, lambda value: session.pick(int(value)))
        with gui.add_folder("Checkpoints"):
            choices = session.followers[0].choices()
            chosen, compared = session.followers[0].which, [f.which for f in session.followers[1:]]
            self._policy = gui.add_dropdown("policy", _with(choices, chosen), initial_value=chosen)
            self._on_change(self._policy, session.follow)
            beside = compared[0] if compared else NOTHING
            self._beside = gui.add_dropdown("beside it", _with((NOTHING, *choices), beside), initial_value=beside)
            self._on_change(self._beside, lambda value: self._compare(session, value))
        if session.abilities.can_push:
            with gui.add_folder("Push"):
                strength = gui.add_slider("strength, m/s", min=0.1, max=3.0, step=0.1, initial_value=1.0)
                buttons = gui.add_button_group("direction", tuple(PUSHES))
                buttons.on_click(lambda _: self._later(lambda: self._push(session, buttons.value, strength.value)))
        if session.abilities.commands:
            self._make_commands(session)
        if session.abilities.num_levels:
            level = session.controls.level(session.env_index)
            slider = gui.add_slider(
                "terrain level", min=0, max=session.abilities.num_levels - 1, step=1, initial_value=level
            )
            self._on_change(slider, lambda value: session.set_level(int(value)))

    def _make_commands(self, session: ViewSession) -> None:
        with self._gui.add_folder("Command"):
            hold = self._gui.add_checkbox("hold this command", False)
            sliders = [
                self._gui.add_slider(entry.name, min=entry.low, max=entry.high, step=0.05, initial_value=_within(entry))
                for entry in session.abilities.commands
                if entry.high > entry.low
            ]

            def command(_: Any) -> None:
                values = iter(slider.value for slider in sliders)
                full = [next(values) if entry.high > entry.low else entry.low for entry in session.abilities.commands]
                session.hold_command(np.array(full) if hold.value else None)

            self._on_change(hold, command)
            for slider in sliders:
                self._on_change(slider, command)

    def _make_observations(self) -> None:
        names = tuple(self._session.tracks[0].moments[-1].obs)
        self._component = self._gui.add_dropdown("component", names, initial_value=names[0])
        self._observations = Chart(self._gui, "its entries, over seconds")
        self._observation_table = self._gui.add_html("")
        self._on_change(self._component, lambda _: self._draw_charts())

    def _make_run(self) -> None:
        self._metric = self._gui.add_dropdown("curve", (NOTHING,), initial_value=NOTHING)
        self._curve = Chart(self._gui, "over env steps")
        self._metric_table = self._gui.add_html("")
        self._on_change(self._metric, lambda _: self._draw_curve())

    def _on_change(self, handle: Any, function: Callable[[Any], object]) -> None:
        """Call a function with the value that a user has chosen; what the page sets itself is skipped."""

        def changed(event: Any) -> None:
            if event.client is not None:
                self._later(lambda: function(handle.value))

        handle.on_update(changed)

    def _later(self, call: Callable[[], object]) -> None:
        self._calls.put(call)  # type: ignore[arg-type]

    # -- what a click does ---------------------------------------------------------------------------------------------

    def _toggle_pause(self) -> None:
        self._session.paused = not self._session.paused
        if not self._session.paused and isinstance(self._session, ViewSession):
            self._session.back = 0

    def _look_back(self, back: int) -> None:
        self._session.paused, self._session.back = True, back

    def _push(self, session: ViewSession, direction: str, strength: float) -> None:
        forward, left = PUSHES[direction]
        session.push(strength * forward, strength * left)

    def _compare(self, session: ViewSession, which: str) -> None:
        count = len(session.tracks)
        session.compare("" if which == NOTHING else which)
        if len(session.tracks) != count:
            self._scene = self._make_scene()
            self.show()

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, over: Callable[[], bool]) -> None:
        """Step and show until `over`."""
        due = {"step": 0.0, "poll": 0.0, "scene": 0.0, "texts": 0.0, "charts": 0.0}
        while not over():
            self.do_calls()
            now = time.monotonic()
            if now >= due["poll"]:
                due["poll"] = now + POLL_SECONDS
                self.poll()
            if not self._server.get_clients():
                time.sleep(0.05)
                continue
            if now >= due["step"]:
                due["step"] = max(due["step"] + self._session.tracks[0].dt / self._speed, now - 0.1)
                self._session.tick()
            for name, seconds, show in (
                ("scene", SCENE_SECONDS, self._draw_scene),
                ("texts", TEXT_SECONDS, self._write_texts),
                ("charts", CHART_SECONDS, self._draw_charts),
            ):
                if now >= due[name]:
                    due[name] = now + seconds
                    show()
            time.sleep(max(0.001, min(due["step"] - time.monotonic(), 0.02)))

    def do_calls(self) -> None:
        """Do what clicks have asked for."""
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            self._notice = ""
            try:
                call()
            except (UsageError, ValueError, RuntimeError, KeyError, ImportError, CheckpointError, OSError) as error:
                self._notice = message_of(error)

    def poll(self) -> None:
        """Look at the run folder."""
        self._session.poll()
        if isinstance(self._session, ViewSession):
            choices = self._session.followers[0].choices()
            self._set_options(self._policy, _with(choices, str(self._policy.value)))
            self._set_options(self._beside, _with((NOTHING, *choices), str(self._beside.value)))
        self._read_metrics()

    def show(self) -> None:
        """Draw everything."""
        self._draw_scene()
        self._write_texts()
        self._draw_charts()

    def _draw_scene(self) -> None:
        session = self._session
        if self._is_new("scene", self._scene, session.env_index, *(track.at(session.back) for track in session.tracks)):
            self._scene.show(session.tracks, session.back, session.env_index)

    def _is_new(self, what: str, *shown: object) -> bool:
        """Return whether something else was drawn before: what does not change is not sent again."""
        before, self._drawn[what] = self._drawn.get(what, ()), shown
        return len(before) != len(shown) or any(one is not other for one, other in zip(before, shown))

    def _write_texts(self) -> None:
        session = self._session
        facts = [("run", str(session.folder)), *session.facts()]
        problem = "; ".join(text for text in (session.problem, self._notice) if text)
        self._set_html(self._facts, _table("facts", facts) + _warning(problem))
        label = "Continue" if session.paused else "Pause"
        if self._pause.label != label:
            self._pause.label = label
        if int(self._back.value) != session.back:
            self._back.value = session.back
        moments = [track.at(session.back) for track in session.tracks]
        names = dict.fromkeys(name for moment in moments for name in moment.terms)
        rows = [
            (name, *(_number(m.terms[name][session.env_index]) if name in m.terms else "–" for m in moments))
            for name in names
        ]
        self._set_html(self._reward_table, _table("rewards", rows))
        component = self._component.value
        numbers = [np.asarray(moment.obs[component][session.env_index]).ravel() for moment in moments]
        entries = range(min(len(numbers[0]), 4 * MAX_LINES))
        rows = [(str(entry), *(_number(values[entry]) for values in numbers)) for entry in entries]
        self._set_html(self._observation_table, _table("observation", rows))

    def _draw_charts(self) -> None:
        session = self._session
        newest = [track.moments[-1] for track in session.tracks]
        if not self._is_new("charts", self._component.value, session.env_index, *newest):
            return
        times = session.tracks[0].times()
        lines: dict[str, NDArray[np.float64]] = {}
        for track, ending in self._named_tracks():
            lines |= {
                f"{name}{ending}": _last(values, times) for name, values in track.rewards(session.env_index).items()
            }
        self._rewards.draw(times, lines)
        lines = {}
        for track, ending in self._named_tracks():
            values = track.observation(self._component.value, session.env_index)
            for entry in range(min(values.shape[1], MAX_LINES)):
                lines[f"{entry}{ending}"] = _last(values[:, entry], times)
        self._observations.draw(times, lines)

    def _named_tracks(self) -> list[tuple[Any, str]]:
        tracks = self._session.tracks
        return [(track, f" {track.label}" if len(tracks) > 1 else "") for track in tracks]

    # -- the log of the run --------------------------------------------------------------------------------------------

    def _read_metrics(self) -> None:
        """Read the log again where it has grown; a damaged or missing one is named in its place."""
        seen = _grown(self._session.folder)
        if seen == self._metrics_seen:
            return
        self._metrics_seen = seen
        try:
            self._metrics = read_metrics(self._session.folder, max_rows=MAX_POINTS)
        except (CheckpointError, ValueError, OSError, KeyError) as error:
            self._set_html(self._metric_table, _warning(message_of(error)))
            return
        metrics = self._metrics
        if not len(metrics.steps):
            return
        names = tuple(sorted(metrics.columns))
        self._set_options(self._metric, (NOTHING, *names))
        if self._metric.value == NOTHING:
            curves = [name for name in (*_PRINCIPAL, *names) if len(metrics.curve(name)[0]) > 1]
            self._metric.value = curves[0] if curves else NOTHING
        newest = [(name, metrics.curve(name)) for name in names]
        rows = [(name, f"{x[-1]:.0f}", _number(y[-1])) for name, (x, y) in newest if len(x)]
        self._set_html(self._metric_table, _table("metrics", rows, head=("metric", "step", "value")))
        self._draw_curve()

    def _draw_curve(self) -> None:
        if self._metrics is not None and self._metric.value in self._metrics.columns:
            steps, values = self._metrics.curve(self._metric.value)
            self._curve.draw(steps, {self._metric.value: values})

    # -- small parts ---------------------------------------------------------------------------------------------------

    def _set_html(self, handle: Any, text: str) -> None:
        if handle.content != text:
            handle.content = text

    def _set_options(self, handle: Any, options: tuple[str, ...]) -> None:
        if tuple(handle.options) != options:
            handle.options = options


class Chart:
    """Curves over one axis; made anew where their names change."""

    def __init__(self, gui: Any, title: str) -> None:
        """Hold a place for the chart."""
        self._gui, self._place = gui, gui.add_folder(title)
        self._handle: Any = None
        self._names: tuple[str, ...] = ()

    def draw(self, x: NDArray[np.float64], lines: dict[str, NDArray[np.float64]]) -> None:
        """Draw the lines; numbers that are not finite hold the last finite one."""
        if not lines or len(x) < 2:
            return
        data = (np.asarray(x, np.float64), *(_held(values) for values in lines.values()))
        if tuple(lines) == self._names:
            self._handle.data = data
            return
        if self._handle is not None:
            self._handle.remove()
        self._names = tuple(lines)
        series = (
            {},
            *({"label": name, "stroke": COLOURS[i % len(COLOURS)], "width": 1.5} for i, name in enumerate(lines)),
        )
        with self._place:
            self._handle = self._gui.add_uplot(
                data,
                series,
                scales={"x": {"time": False}},
                axes=({}, {"size": 64}),
                legend={"show": True, "live": False},
                aspect=1.6,
            )


def _held(values: NDArray[Any]) -> NDArray[np.float64]:
    found = np.array(values, np.float64)
    good = np.isfinite(found)
    if good.all():
        return found
    if not good.any():
        return np.zeros_like(found)
    newest = np.maximum.accumulate(np.where(good, np.arange(len(found)), 0))
    found = found[newest]
    found[~np.isfinite(found)] = found[np.isfinite(found)][0]
    return found


def _last(values: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit a track's values to the times of the first one: the newest moments of both are the same."""
    if len(values) >= len(times):
        return values[len(values) - len(times) :]
    return np.concatenate([np.full(len(times) - len(values), np.nan), values])


def _grown(folder: Path) -> object:
    found = []
    for name in ("metrics.jsonl", "metrics.csv"):
        try:
            about = (folder / name).lstat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((about.st_mtime_ns, about.st_size))
    return tuple(found)


def _within(entry: Any) -> float:
    return float(np.clip(0.0, entry.low, entry.high))


def _with(options: Sequence[str], chosen: str) -> tuple[str, ...]:
    return tuple(options) if chosen in options else (*options, chosen)


def _number(value: Any) -> str:
    return f"{float(value):.6g}"


def _warning(text: str) -> str:
    shown = f'<p data-view="problem" style="color:#b91c1c;margin:4px 12px">{html.escape(text)}</p>'
    return shown if text else ""


def _table(name: str, rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return a table; every row carries its first cell as its name."""
    cells = ['style="padding:1px 8px 1px 0;overflow-wrap:anywhere"', 'style="padding:1px 8px 1px 0"']
    lines = [
        f'<tr data-row="{html.escape(row[0], quote=True)}">'
        + "".join(f"<td {cells[min(index, 1)]}>{html.escape(cell)}</td>" for index, cell in enumerate(row))
        + "</tr>"
        for row in rows
    ]
    title = "<tr>" + "".join(f'<th style="text-align:left">{html.escape(cell)}</th>' for cell in head) + "</tr>"
    body = (title if head else "") + "".join(lines)
    return f'<table data-view="{name}" style="font-size:13px;margin:4px 12px;line-height:1.35">{body}</table>'
