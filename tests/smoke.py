"""Run in an environment that has only stationary and its core dependencies: ``make dist`` does, for each package."""

import subprocess
import sys
from importlib import metadata, resources, util
from pathlib import Path

import torch
from torch import nn

import stationary as st

EXTRAS = {  # what needs an extra says which
    "from stationary import StationaryClassifier": "sklearn",
    "import stationary.gp": "gp",
    "import stationary.lab.cli.app": "experiments",
    "from stationary.lab.data import uci": "experiments",
}
FILES = {  # what is not Python comes along: its name, and what it holds
    "py.typed": None,
    "lab/report/report.html.jinja": "<html",
    "explorer/page.html": "<html",
    "lab/experiments/paper_tables.csv": ",",
    "lab/data/files/README.md": "Banana",
}


def installed_alone() -> None:
    assert metadata.version("stationary") == st.__version__
    assert "site-packages" in Path(st.__file__).parts, f"not the installed package: {st.__file__}"
    others = [name for name in ("gpytorch", "sklearn", "pandas", "matplotlib", "typer") if util.find_spec(name)]
    assert not others, f"this environment is not empty, it has {others}"


def works() -> None:
    x = torch.randn(40, 2)
    y = (x[:, 0] > 0).long()
    assert st.Matern(nu=1.5)(x).shape == x.shape
    mean, error = st.monte_carlo_kernel(st.Matern(nu=1.5), x, n_units=1000)
    assert mean.shape == error.shape == (40, 40)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), st.StationaryHead(16, 2, hidden=8, dropout=0.2))
    optimizer = torch.optim.Adam(model.parameters())
    start = model[0].weight.clone()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert not model[0].weight.equal(start)
    st.calibrate_prior(model, x)
    sampled, exact = (st.predict(model, x, method) for method in (st.MCDropout(2000), st.ExactDropout()))
    assert (sampled.probs - exact.probs).abs().max() < 0.1
    assert st.metrics.accuracy(exact, y) >= 0
    posterior = st.fit(st.Ensemble(2), lambda: st.MLP(2, 2, hidden=(8,)), (x, y), st.Training(epochs=2))
    assert st.predict(posterior, x).entropy().shape == (40,)


def names_missing_extras() -> None:
    for statement, extra in EXTRAS.items():
        run = subprocess.run([sys.executable, "-I", "-c", statement], capture_output=True, text=True)
        assert f"pip install 'stationary[{extra}]'" in run.stderr, (statement, run.stderr)
    command = subprocess.run([Path(sys.executable).with_name("stationary")], capture_output=True, text=True)
    assert "stationary[experiments]" in command.stderr and command.stderr.count("\n") == 1, command.stderr


def brings_its_files() -> None:
    package = resources.files("stationary")
    for name, part in FILES.items():
        assert part is None or part in (package / name).read_text(encoding="utf-8"), name
        assert (package / name).is_file(), name
    tables = sorted(entry.name for entry in (package / "lab/data/files").iterdir() if entry.name.endswith(".csv.xz"))
    bundled = ["adult", "banana", "connect-4", "diabetes", "hpobench-vehicle"]
    assert tables == [f"{name}.csv.xz" for name in bundled], tables


if __name__ == "__main__":
    torch.manual_seed(0)
    for check in (installed_alone, works, names_missing_extras, brings_its_files):
        check()
