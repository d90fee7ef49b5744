import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from stationary.cli import app


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_run_writes_figures_and_reuses_results(tmp_path):
    first = run("run", "covariance", "--scale", "smoke", "--out", str(tmp_path))
    assert first.exit_code == 0, first.output
    assert "reused" not in first.output
    for kind in ("png", "svg"):
        path = tmp_path / f"covariance.{kind}"
        assert path.exists() and str(path) in first.output.replace("\n", "")
    assert "\x1b" not in first.output, "no escape codes in a pipe"
    second = run("run", "covariance", "--scale", "smoke", "--out", str(tmp_path))
    assert "reused" in second.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "banan"), "no experiment banan; there are covariance"),
        (("run", "--scale", "big"), "must be paper or smoke"),
    ],
)
def test_bad_arguments(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


@pytest.mark.chromium
def test_the_figure_renders_in_a_browser(tmp_path):
    """The SVG, opened as a reader would: the screenshot shows curves in at least three of the four colours."""
    import matplotlib.image

    run("run", "covariance", "--scale", "smoke", "--out", str(tmp_path))
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    screenshot = tmp_path / "screen.png"
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
    ]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={screenshot}", "--window-size=1000,400"]
    subprocess.run([*command, (tmp_path / "covariance.svg").as_uri()], check=True, capture_output=True, timeout=120)
    pixels = matplotlib.image.imread(screenshot)[..., :3]
    for color in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x00, 0x9E, 0x73), (0xCC, 0x79, 0xA7)):
        distance = abs(pixels - [c / 255 for c in color]).max(-1)
        assert (distance < 0.05).sum() > 50, f"colour {color} is missing"
