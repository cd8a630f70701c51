"""The report in a real browser: from disk, without a network, its numbers those of metrics.csv, no complaint."""

from __future__ import annotations

import csv
import json
import os
import shutil

import numpy as np
import pytest

from striderl.cli.main import main
from striderl.cli.seeing.report import write_report
from striderl.collect.trace import SUFFIX, EnvTrace, write_trace
from striderl.loggers.console_logger import short_number

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
IN_CI = bool(os.environ.get("CI"))
try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
except ImportError:
    webdriver = None

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(webdriver is None and not IN_CI, reason="selenium is not installed"),
    pytest.mark.skipif(
        not (BROWSER and DRIVER) and not IN_CI, reason="no Chromium with chromedriver is on this machine"
    ),
]

TINY = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.total-steps", "128", "--stop.metric", ""),
    *("--evaluation.num-episodes", "2", "--evaluation.every", "2", "--policy.actor-hidden-dims", "8"),
    *("--algorithm.num-mini-batches", "2", "--logging.console", "off"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with a video, a second seed of it, and one with another setting."""
    root = tmp_path_factory.mktemp("runs")
    words = ["train", "cartpole", *TINY, "--runs", str(root)]
    assert main([*words, "--name", "one", "--logging.video-every", "99", "--logging.video-seconds", "0.4"]) == 0
    assert main([*words, "--name", "two", "--seed", "1"]) == 0
    assert main([*words, "--name", "three", "--algorithm.gamma", "0.9"]) == 0
    folders = [root / "cartpole" / name for name in ("one", "two", "three")]
    feet = np.tile(np.array([[1.0, 0.0, 0.0, 1.0]] * 5 + [[0.0, 1.0, 1.0, 0.0]] * 5, np.float32), (3, 1))
    walk = EnvTrace(
        obs={"foot_contacts": feet}, actions={}, reward=np.zeros(30), done=np.zeros(30, bool), facts={"step_dt": 0.02}
    )
    write_trace(folders[1] / "videos" / f"walk{SUFFIX}", walk)
    return folders


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser that reaches nothing: every name and address but the disk is refused."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    flags = (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1120,1600"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9", "--disable-background-networking"),
        f"--user-data-dir={tmp_path_factory.mktemp('browser')}",
    )
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    found.set_page_load_timeout(60)
    yield found
    found.quit()


def shown(browser, path):
    """Open a page from disk; raise for a complaint of the browser or a request for anything but the page itself."""
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    urls = [each["request"]["url"] for each in asked if each["documentURL"] == path.as_uri()]
    assert path.as_uri() in urls
    assert all(url == path.as_uri() or url.startswith("data:") for url in urls), [url[:100] for url in urls]
    return browser.find_element(By.TAG_NAME, "main").text


def rows_of(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def under_the_pointer(browser, title):
    """The values that a chart shows, point by point, as (step, value) texts."""
    chart = browser.find_element(By.CSS_SELECTOR, f'svg[aria-label="{title}"]')
    texts = chart.find_elements(By.CSS_SELECTOR, ".hover text")
    return [tuple(part.strip() for part in each.get_attribute("textContent").split(":")) for each in texts]


def test_one_run(runs, browser):
    text = shown(browser, runs[0] / "report.html")
    titles = [each.text for each in browser.find_elements(By.TAG_NAME, "h2")]
    assert titles == [
        *("Learning curves", "Videos", "Episodes", "Time", "Faults and quarantine", "Settings", "Checkpoints"),
        *("Versions", "Repeat it"),
    ]
    rows = rows_of(runs[0])
    for title, column in (("Value loss", "train/value_loss"), ("Return in evaluation", "evaluate/return_mean")):
        logged = [(row["step"], short_number(float(row[column]))) for row in rows if row[column]]
        assert under_the_pointer(browser, title) == logged and logged
    tiles = [each.text.split("\n") for each in browser.find_elements(By.CSS_SELECTOR, ".tiles div")]
    found = {name: value for value, name in tiles}
    evaluated = [row["evaluate/return_mean"] for row in rows if row["evaluate/return_mean"]]
    assert found["return in evaluation"] == short_number(float(evaluated[-1]))
    assert found["env steps"] == rows[-1]["step"]
    assert "evaluating" in text and "videos" in text  # where the time went, beside collecting and learning
    assert "striderl train cartpole --algorithm ppo" in text


def test_the_video_plays_inside_the_page(runs, browser):
    shown(browser, runs[0] / "report.html")
    played = "return new Promise(done => {const v = document.querySelector('video');"
    played += "if (v.readyState >= 2) done(v.videoWidth); v.onloadeddata = () => done(v.videoWidth);"
    played += "v.onerror = () => done(-1); v.load();})"
    assert browser.execute_script(played) > 0


def test_the_pointer_shows_the_values(runs, browser):
    shown(browser, runs[0] / "report.html")
    chart = browser.find_element(By.CSS_SELECTOR, 'svg[aria-label="Value loss"]')
    strip, value = (chart.find_elements(By.CSS_SELECTOR, f".hover {name}")[0] for name in ("rect", "text"))
    assert value.value_of_css_property("visibility") == "hidden"
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    webdriver.ActionChains(browser).move_to_element(strip).perform()
    assert value.value_of_css_property("visibility") == "visible"


def test_links_lead_to_their_sections(runs, browser):
    shown(browser, runs[0] / "report.html")
    links = browser.find_elements(By.CSS_SELECTOR, "nav a")
    assert [each.text for each in links][:2] == ["Learning curves", "Videos"]
    for link in links:
        place = link.get_attribute("href").partition("#")[2]
        assert browser.find_element(By.ID, place).find_element(By.TAG_NAME, "h2").text == link.text


def test_several_runs(runs, browser, tmp_path):
    text = shown(browser, write_report(runs, tmp_path / "all.html"))
    assert "mean of 2 seeds, 95 % interval" in text and "not distinguishable" in text
    assert "Gait: feet on the ground" in text and "50, 50, 50, 50 % of the time" in text
    head, *body = browser.find_elements(By.CSS_SELECTOR, "#differences tr")
    assert [cell.text for cell in head.find_elements(By.TAG_NAME, "th")][1:] == [
        f"cartpole/{each.name}" for each in runs
    ]
    assert ["algorithm.gamma", "0.98", "0.98", "0.9"] in [
        [cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in body
    ]
    # the comparison's scores are the last evaluations of metrics.csv
    last = [[row["evaluate/return_mean"] for row in rows_of(run) if row["evaluate/return_mean"]][-1] for run in runs]
    scores = [row.text.split() for row in browser.find_elements(By.CSS_SELECTOR, "#comparison tr")[1:]]
    assert scores[0][-2:] == [short_number(float(value)) for value in last[:2]]
    assert scores[1][-1] == short_number(float(last[2]))


@pytest.mark.parametrize("width", [390, 1120])
def test_nothing_is_wider_than_the_window(runs, browser, tmp_path, width):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        shown(browser, write_report(runs, tmp_path / "all.html"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_hostile_words_are_shown_and_not_run(runs, browser, tmp_path):
    copied = shutil.copytree(runs[2], tmp_path / "cartpole" / "copied")
    words = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
    (copied / "versions.json").write_text(json.dumps({"x": words}))
    text = shown(browser, write_report([copied], tmp_path / "page.html"))
    assert "document.title='run'" in text and browser.title != "run"


def test_dark_and_light_differ(runs, browser):
    colours = []
    for scheme in ("light", "dark"):
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
        shown(browser, runs[0] / "report.html")
        colours.append(browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color"))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(set(colours)) == 2
