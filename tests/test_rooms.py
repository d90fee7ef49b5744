"""The contracts of import-linter, which make lint checks, are complete."""

from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings its twin
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PRIVATE = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src" / "stationary").glob("*/**/_*.py"))
    if path.name not in ("__init__.py", "__main__.py")
]


@pytest.mark.parametrize("module", PRIVATE)
def test_a_private_module_is_imported_within_its_room_only(module):
    contracts = [contract for contract in CONTRACTS if module in contract.get("protected_modules", ())]
    assert len(contracts) == 1, f"{module} must be among protected_modules of one contract in pyproject.toml"
    assert contracts[0]["allowed_importers"] == [module.rpartition(".")[0]]
