"""Every public name has a type that all type checkers agree on: ``make types`` runs this.

``pyright --verifytypes`` lists each name with what it cannot know of it. Two lists say what is excused.
"""

import json
import subprocess
import sys
from typing import Any

INTERNAL = ("lab",)  # no promise to a user
UNTYPED = ("gp", "estimators", "bo")  # their base classes come from GPyTorch, scikit-learn and BoTorch, without types
MISSING = "missing type annotation"


def complaints(symbols: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for symbol in symbols:
        part = symbol["name"].split(".")[1]
        errors = [d["message"].split("\n")[0] for d in symbol["diagnostics"] if d["severity"] == "error"]
        if part in UNTYPED:
            errors = [error for error in errors if MISSING in error]
        if errors and part not in INTERNAL:
            found.append(f"{symbol['name']}: {errors[0]}")
    return found


if __name__ == "__main__":
    command = ["basedpyright", "--verifytypes", "stationary", "--ignoreexternal", "--outputjson"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["typeCompleteness"]
    found = complaints(report["symbols"]) if report["symbols"] else ["stationary is not installed in this python"]
    print(
        "\n".join(found)
        or f"{len(report['symbols'])} names, {report['completenessScore']:.1%} known outright, the rest excused"
    )
    sys.exit(bool(found))
