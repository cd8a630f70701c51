"""Look at a report with a browser: it must open from disk, run nothing, ask for nothing, and draw its curves.

    python tools/check_report.py runs/cartpole/…/report.html --pictures /tmp

Chromium opens the page without a network, in light and dark; the pictures are for the eye. The suite does the same with
small runs (`tests/cli/test_report_browser.py`) where there is a browser, and reads the page with Python's parser.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--v=0"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1120,3000"),
]
SCHEMES = {"light": 1, "dark": 0}


def main() -> int:
    """Check one page and print a line per check; returns 1 where one fails."""
    parser = argparse.ArgumentParser(description="Look at a report with a browser.")
    parser.add_argument("report", type=Path, help="report.html of a run")
    parser.add_argument("--pictures", type=Path, default=Path(), help="where the pictures go (default: here)")
    options = parser.parse_args()
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.stderr.write(f"no browser: install one of {', '.join(BROWSERS)}\n")
        return 2
    address = options.report.resolve().as_uri()
    dumped = subprocess.run([browser, *OPTIONS, "--dump-dom", address], capture_output=True, text=True, timeout=120)
    complaints = re.findall(r"CONSOLE.*", dumped.stderr)
    checks = {
        "the page has sections": dumped.stdout.count("<section") >= 3,
        "curves are drawn": 'class="line' in dumped.stdout,
        "no script is in it": "<script" not in dumped.stdout,
        f"the browser has no complaints {complaints[:3] if complaints else ''}": not complaints,
    }
    for scheme, number in SCHEMES.items():
        picture = options.pictures / f"{options.report.stem}_{scheme}.png"
        words = [f"--blink-settings=preferredColorScheme={number}", f"--screenshot={picture.resolve()}", address]
        subprocess.run([browser, *OPTIONS, *words], capture_output=True, timeout=120, check=False)
        checks[f"{picture} is there"] = picture.is_file()
    for name, passed in checks.items():
        sys.stdout.write(f"{'ok  ' if passed else 'FAIL'} {name}\n")
    return int(not all(checks.values()))


if __name__ == "__main__":
    sys.exit(main())
