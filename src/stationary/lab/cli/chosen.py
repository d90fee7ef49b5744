"""What a command is about: the named experiments, their configurations, and those that have results."""

import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from stationary._extras import extra

with extra("experiments"):
    import typer

from stationary.lab.cli.console import bad_parameters, say, warn
from stationary.lab.cli.options import Scale
from stationary.lab.cli.select import Choices, Selection, select
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.base import Experiment
from stationary.lab.runs.store import RESULT, RunStore


def chosen(names: Sequence[str] | None) -> dict[str, Experiment]:
    """Return the named experiments, or all of them if there are no names."""
    for unknown in sorted(set(names or ()) - set(EXPERIMENTS)):
        near = get_close_matches(unknown, EXPERIMENTS, n=1)
        meant = f"did you mean {near[0]}? All are" if near else "use"
        raise typer.BadParameter(f"there is no experiment {unknown}; {meant} {', '.join(EXPERIMENTS)}")
    return {name: EXPERIMENTS[name] for name in names or EXPERIMENTS}


def selected_of(
    names: Sequence[str] | None, scale: Scale | None, choices: Choices, settings: Sequence[str] | None
) -> dict[str, Selection]:
    with bad_parameters():
        selected = select(chosen(names), scale and scale.value, choices, settings or (), strict=bool(names))
    for name, selection in selected.items():
        if not scale and selection.scale != Scale.demo.value:
            warn(f"{name}: the scale is {selection.scale}, because demo, the usual one, lacks some of what was chosen")
    return selected


def reported(
    names: Sequence[str] | None,
    scale: Scale | None,
    choices: Choices,
    settings: Sequence[str] | None,
    store: RunStore,
) -> dict[str, Selection]:
    """Return the selected configurations of each experiment.

    Without a scale, an experiment that has no results of the default scale is reported at a scale that has some.
    """
    if scale:
        return selected_of(names, scale, choices, settings)
    with bad_parameters():
        selected = select(chosen(names), None, choices, settings or (), strict=bool(names))
    for name, selection in selected.items():
        others = [_selection_of(name, other, choices, settings) for other in (Scale.demo, Scale.paper, Scale.smoke)]
        found = [one for one in (selection, *filter(None, others)) if _has_results(name, one, store)]
        if found and found[0].scale != Scale.demo.value:
            say(f"{name}: the scale is {found[0].scale}, because there are no such results of demo, the usual one")
        selected[name] = (found or [selection])[0]
    return selected


def _selection_of(name: str, scale: Scale, choices: Choices, settings: Sequence[str] | None) -> Selection | None:
    """Return the configurations of one experiment at one scale, or None where that scale lacks what is chosen."""
    try:
        return select({name: EXPERIMENTS[name]}, scale.value, choices, settings or (), strict=True)[name]
    except ValueError:
        return None


def _has_results(name: str, selection: Selection, store: RunStore) -> bool:
    version = EXPERIMENTS[name].config.VERSION
    return any((store.folder(name, version, config) / RESULT).exists() for config in selection.configs)


def scales_with_results(
    names: Sequence[str] | None, choices: Choices, settings: Sequence[str] | None, store: RunStore
) -> list[Scale]:
    def has(name: str, scale: Scale) -> bool:
        selection = _selection_of(name, scale, choices, settings)
        return selection is not None and _has_results(name, selection, store)

    return [scale for scale in Scale if any(has(name, scale) for name in chosen(names))]


def command_line(
    command: str,
    names: Sequence[str] | None,
    scale: Scale | None,
    out: Path,
    choices: Choices,
    settings: Sequence[str] | None,
) -> str:
    """Write the command line of another command with the same options."""
    options = [("--scale", scale.value if scale else "", ""), ("--out", str(out), "out")]
    options += [(f"--{key}", ",".join(wanted), "") for key, wanted in choices.items()]
    options += [("--set", setting, "") for setting in settings or ()]
    given = [word for option, value, default in options if value != default for word in (option, value)]
    return shlex.join(["stationary", command, *(names or ()), *given])
