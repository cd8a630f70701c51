"""`striderl view` in a real browser: Chromium without a display and without a network.

What is needed is Debian's chromium and chromium-driver (`tools/setup.py` installs them); without them the tests
skip, and in CI they fail.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import numpy as np
import pytest
from view_cases import STEP, config_of, made, opened, save_next

pytest.importorskip("viser", reason="viser is not installed")
pytest.importorskip("selenium", reason="selenium is not installed")

from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from striderl.checkpoint.store import CheckpointStore
from striderl.cli.view.fault import FaultSession
from striderl.cli.view.page import ViewPage
from striderl.cli.view.server import PARAMETER, RequestCheck, close_server, open_server
from striderl.collect.trace import EnvTrace, write_trace
from striderl.envs.tasks import make
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_folder import new_run_folder

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BROWSER and DRIVER) and not os.environ.get("CI"), reason="chromium and chromedriver are not installed"
    ),
]
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"),
    *("--window-size=1000,700", "--force-device-scale-factor=0.5"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
]
FEW_FRAMES = """
    const draw = window.requestAnimationFrame.bind(window);
    window.requestAnimationFrame = then => setTimeout(() => draw(then), 1000);
"""
"""A script of every page: without a graphics card, all frames that it can draw would keep both cores busy."""
PATIENCE = 120.0


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS:
        options.add_argument(flag)
    # no connections ahead of need: a server that is closed waits five seconds for one that has asked for nothing
    options.add_experimental_option("prefs", {"net.network_prediction_options": 2})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    found.set_page_load_timeout(PATIENCE)
    found.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": FEW_FRAMES})
    yield found
    found.quit()


@pytest.fixture(scope="module")
def walker(tmp_path_factory):
    """A quadruped that was trained for an iteration, so that it has a log."""
    config = config_of("quadruped")
    run = new_run_folder(config, tmp_path_factory.mktemp("walker"), "x")
    Run(config, run).drive()
    return run.path


@contextlib.contextmanager
def served(browser, session, host="127.0.0.1"):
    """Serve a session in a thread, paused; yields the address, and has the browser leave it in the end."""
    check, over = RequestCheck(host), threading.Event()
    session.paused = True
    server = open_server(host, 0, check)
    page = ViewPage(server, session)
    thread = threading.Thread(target=page.run, args=(over.is_set,), daemon=True)
    thread.start()
    try:
        token = f"/?{PARAMETER}={check.token}" if check.token else ""
        yield f"http://127.0.0.1:{server.get_port()}{token}"
    finally:
        browser.get("about:blank")  # a page that stays goes on drawing
        over.set()
        thread.join(PATIENCE)
        close_server(server)
        session.close()


class Page:
    """What the tests do with a page."""

    def __init__(self, browser, address):
        browser.get_log("browser"), browser.get_log("performance")
        self.browser, self.port = browser, f":{urlsplit(address).port}/"
        browser.get(address)
        self.until(lambda: self.facts())

    def until(self, true):
        return WebDriverWait(self.browser, PATIENCE, poll_frequency=0.2).until(lambda _: true())

    def rows(self, name):
        """The rows of a table, by their first cell; empty while it is not there."""
        script = """
            const rows = [...document.querySelectorAll(`table[data-view="${arguments[0]}"] tr[data-row]`)];
            return rows.map(row => [...row.cells].map(cell => cell.textContent));
        """
        return {row[0]: row[1:] for row in self.browser.execute_script(script, name)}

    def facts(self):
        return {name: cells[0] for name, cells in self.rows("facts").items()}

    def problem(self):
        script = "const p = document.querySelector('[data-view=problem]'); return p ? p.textContent : ''"
        return self.browser.execute_script(script)

    def click(self, text):
        self.until(lambda: self.browser.find_elements(By.XPATH, f"//*[normalize-space(text())='{text}']"))
        element = self.browser.find_elements(By.XPATH, f"//*[normalize-space(text())='{text}']")[0]
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def slider(self, label):
        path = f"//label[normalize-space(.)='{label}']/following::*[@role='slider'][1]"
        return self.browser.find_element(By.XPATH, path)

    def nudge(self, label, true):
        """Move a slider by a step, again where a busy page has not yet its new range and lets the key go."""
        for _ in range(int(PATIENCE / 15)):
            self.slider(label).send_keys(Keys.ARROW_RIGHT)
            try:
                return WebDriverWait(self.browser, 15.0, poll_frequency=0.2).until(lambda _: true())
            except TimeoutException:
                continue
        raise AssertionError(f"the slider {label!r} does not move")

    def picture(self):
        return np.asarray(Image.open(io.BytesIO(self.browser.get_screenshot_as_png())).convert("RGB"), np.int64)

    def complaints(self):
        """Errors of the console, and requests to anywhere else; a page of an earlier test may still miss its server."""
        errors = [line["message"] for line in self.browser.get_log("browser") if line["level"] == "SEVERE"]
        errors = [text for text in errors if "127.0.0.1:" not in text or self.port in text]
        for line in self.browser.get_log("performance"):
            message = json.loads(line["message"])["message"]
            address = message["params"].get("request", {}).get("url", "") or message["params"].get("url", "")
            if message["method"] in (
                "Network.requestWillBeSent",
                "Network.webSocketCreated",
            ) and not address.startswith(("http://127.0.0.1", "ws://127.0.0.1", "blob:http://127.0.0.1", "data:")):
                errors.append(address)
        return errors


def test_the_page_of_a_robot(browser, walker):
    session = opened(walker, num_envs=2)
    with served(browser, session) as address:
        page = Page(browser, address)
        for text in ("Continue", "Step", "New episode", "Checkpoints", "Push", "Command", "policy", "beside it"):
            assert browser.find_elements(By.XPATH, f"//*[normalize-space(text())='{text}']"), text
        assert page.facts()["policy"] == f"best, of step {session.followers[0].loaded.step:,}"
        for count in (1, 2, 3):
            page.click("Step")
            page.until(lambda count=count: page.facts()["time"] == f"{0.02 * count:.2f} s")
        before = session.controls.env.qvel[0, 0]
        page.click("forward")
        page.until(lambda: session.controls.env.qvel[0, 0] == pytest.approx(before + 1.0))
        page.nudge("steps back", lambda: session.back == 1)
        page.until(lambda: page.facts()["time"] == "0.04 s")
        page.click("hold this command")
        page.nudge("forward, m/s", lambda: session.controls.command(0)[0] == pytest.approx(0.05))
        page.nudge("env", lambda: session.env_index == 1)
        page.click("Rewards")
        terms = session.tracks[0].at(1).terms
        wanted = {name: pytest.approx(values[1], rel=1e-5, abs=1e-12) for name, values in terms.items()}
        # on busy cores the page shows the numbers of the other env for a moment longer
        page.until(lambda: {name: float(cells[0]) for name, cells in page.rows("rewards").items()} == wanted)
        assert page.until(lambda: browser.find_elements(By.CSS_SELECTOR, ".uplot canvas"))
        page.click("Observations")
        name = next(iter(session.tracks[0].at(1).obs))
        numbers = pytest.approx(list(session.tracks[0].at(1).obs[name][1]), rel=1e-5)
        page.until(lambda: [float(cells[0]) for cells in page.rows("observation").values()] == numbers)
        assert robot_is_seen(page.picture())
        assert page.problem() == "" and page.complaints() == []


def robot_is_seen(picture):
    """The head of the built-in quadruped is orange; nothing else on the page is."""
    red, green, blue = picture[..., 0], picture[..., 1], picture[..., 2]
    return np.count_nonzero((red > 150) & (green > 90) & (blue < 110) & (red - blue > 70)) > 20


def test_numbers_of_the_log_are_those_of_the_file(browser, walker):
    with served(browser, opened(walker)) as address:
        page = Page(browser, address)
        page.click("Run")
        shown = page.until(lambda: page.rows("metrics"))
        with open(walker / "metrics.csv", newline="") as file:
            *_, last = csv.DictReader(file)
        step = last.pop("step")
        wanted = {name: float(text) for name, text in last.items() if text and np.isfinite(float(text))}
        assert len(wanted) > 20 and set(wanted) <= set(shown)
        for name, value in wanted.items():
            assert shown[name][0] == step and float(shown[name][1]) == pytest.approx(value, rel=1e-5), name
        assert page.complaints() == []


def test_a_run_that_still_trains_is_followed_through_a_hot_swap(browser, tmp_path):
    """A real training in another process; its pictures are shown as cartpole is no MuJoCo task."""
    words = ["--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--num-threads", "1", "--name", "x"]
    words += [
        "--evaluation.every",
        "0",
        "--logging.console",
        "off",
        "--stop.metric",
        "",
        "--steps",
        "100000000",
        "--mode",
        "eager",
    ]
    command = [sys.executable, "-m", "striderl", "train", "cartpole", "--checkpoints.every", "20", *words]
    training = subprocess.Popen([*command, "--runs", str(tmp_path)], stdout=subprocess.DEVNULL)
    folder = tmp_path / "cartpole" / "x"
    try:
        WebDriverWait(training, PATIENCE, poll_frequency=0.1).until(lambda _: (folder / "specs.json").is_file())
        session = opened(folder, checkpoint="last")
        with served(browser, session) as address:
            page = Page(browser, address)
            policies = {page.facts()["policy"]}
            page.until(lambda: policies.add(page.facts()["policy"]) or len(policies) > 2)
            training.terminate()
            training.wait(timeout=PATIENCE)
            newest = CheckpointStore(folder / "checkpoints").steps()[-1]
            page.until(lambda: page.facts()["policy"] == f"last, of step {newest:,}")
            page.click("Step")
            page.until(lambda: page.facts()["time"] != "0.00 s")
            image = browser.find_element(By.TAG_NAME, "img")
            assert image.size["width"] > 100
            assert page.problem() == ""
            shutil.rmtree(folder)
            page.until(lambda: "is gone" in page.problem())
            page.click("Step")
            page.until(lambda: page.facts()["time"] != "0.02 s")
            assert page.complaints() == []
    finally:
        training.kill()
        training.wait()


def test_two_checkpoints_side_by_side_behind_a_token(browser, tmp_path):
    folder = made(tmp_path, "quadruped")
    save_next(folder, step=200)
    session = opened(folder, checkpoint=str(STEP), compare="200", num_envs=1)
    with served(browser, session, host="0.0.0.0") as address:
        page = Page(browser, address)
        assert page.facts()["policy A"] == f"{STEP}, of step {STEP}" and page.facts()["policy B"] == "200, of step 200"
        page.click("Step")
        page.until(lambda: page.facts()["time"] == "0.02 s")
        assert robot_is_seen(page.picture())
        assert page.complaints() == []
        browser.delete_all_cookies()
        browser.get(address.partition("?")[0])
        assert "token" in browser.find_element(By.TAG_NAME, "body").text


def test_a_fault_is_replayed(browser, walker, tmp_path):
    folder, hostile = shutil.copytree(walker, tmp_path / "run"), "<img src=x onerror=document.title='bad'>"
    with make("quadruped", num_envs=1) as env:
        env.reset(seed=1)
        pose, model = np.repeat(env.qpos, 5, axis=0), env.model
    trace = EnvTrace(
        obs={"joint_vel": np.full((5, 12), np.nan)},
        actions={"action": np.zeros((5, 12))},
        reward=np.zeros(5),
        done=np.zeros(5, bool),
        facts={"component": hostile, "env": 1, "value": "nan", "step": 9, "step_dt": 0.02},
        pose=pose,
    )
    write_trace(folder / "faults" / "joint_vel_env1_step9.trace.npz", trace)
    with served(browser, FaultSession(folder, 1, model=lambda: model)) as address:
        page = Page(browser, address)
        assert page.facts()["bad number"] == f"{hostile} of env 1 was nan at step 9"
        assert page.facts()["shown"] == "4 of 4 steps before it"
        page.click("Step")
        page.until(lambda: page.facts()["shown"] == "3 of 4 steps before it")
        page.click("Observations")
        assert page.until(lambda: page.rows("observation"))["0"] == ["nan"]
        assert robot_is_seen(page.picture())
        assert browser.title != "bad" and page.complaints() == []
