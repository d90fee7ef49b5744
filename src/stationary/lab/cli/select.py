"""Which configurations a command is about: those of a scale, narrowed by choices, with settings changed."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from stationary.lab.experiments.base import Experiment

CHOSEN = ("dataset", "method", "prior")  # settings with an option of their own, which chooses runs
Choices: TypeAlias = Mapping[str, Sequence[str]]  # by setting, the values to choose; "all" chooses every value


@dataclass(frozen=True)
class Selection:
    """Configurations of one experiment, and the scale that they belong to."""

    scale: str
    configs: list[Any]


def choices_from(**options: Sequence[str] | None) -> Choices:
    """Return the choices that options of the command line make; one text may name several values with commas."""
    return {
        key: [value.strip() for text in texts for value in text.split(",")] for key, texts in options.items() if texts
    }


def select(
    experiments: Mapping[str, Experiment],
    scale: str | None,
    choices: Choices,
    settings: Sequence[str] = (),
    *,
    strict: bool,
) -> dict[str, Selection]:
    """Return, by experiment, the configurations that fit the choices, with the settings changed.

    They are taken from the given scale. Without a scale they are taken from "demo"; but from "paper" where a choice is
    "all", or where "demo" lacks a combination of chosen values that "paper" has.

    Args:
        experiments: the experiments to select from, by name.
        scale: "smoke", "demo", "paper", or None to let the choices decide between "demo" and "paper".
        choices: by setting, the values that a configuration may have; other configurations are left out.
        settings: texts ``key=value``, each a setting to change in every configuration.
        strict: whether an experiment to which the choices do not apply is an error. If False it is left out, and it is
            an error only when no experiment remains.

    Raises:
        ValueError: if a choice or a setting does not fit the experiments.
    """
    selected, problems = {}, []
    for name, experiment in experiments.items():
        try:
            selection = _fitting(experiment, scale, choices)
        except ValueError as problem:
            if strict:
                raise
            problems.append(str(problem))
        else:
            selected[name] = Selection(selection.scale, changed(experiment, selection.configs, settings))
    if not selected:
        raise ValueError("; ".join(problems))
    return selected


def _fitting(experiment: Experiment, scale: str | None, choices: Choices) -> Selection:
    name, module = experiment.name, experiment.config
    small, large = (scale, scale) if scale else ("demo", "paper")
    if not choices:
        return Selection(small, list(module.configs(small)))
    grids = {of: module.configs(of) for of in (small, large)}
    for key, wanted in choices.items():
        if key not in {field.name for field in fields(module.Config)}:
            raise ValueError(f"--{key} does not apply to {name}, whose configurations have no {key}; leave it out")
        known = list(dict.fromkeys(str(getattr(config, key)) for grid in grids.values() for config in grid))
        if unknown := [value for value in wanted if value not in (*known, "all")]:
            rule = f"--{key} of {name} must be all or among {', '.join(known)}"
            of_scale = f" with --scale {scale}" if scale else ""
            raise ValueError(f"{rule}{of_scale}; got {', '.join(unknown)}{meant(unknown[0], known)}")

    def values(config: Any) -> tuple[str, ...]:
        return tuple(str(getattr(config, key)) for key in choices)

    def fits(config: Any) -> bool:
        return all({value, "all"} & set(wanted) for value, wanted in zip(values(config), choices.values(), strict=True))

    found = {of: [config for config in grid if fits(config)] for of, grid in grids.items()}
    combinations = {of: set(map(values, configs)) for of, configs in found.items()}
    everything = any("all" in wanted for wanted in choices.values())
    of = large if everything or combinations[large] - combinations[small] else small
    for number, (key, wanted) in enumerate(choices.items()):
        if absent := set(wanted) - {"all"} - {combination[number] for combination in combinations[of]}:
            raise ValueError(
                f"{name} has no configuration with --{key} {','.join(sorted(absent))} together with the other choices;"
                " choose fewer at once"
            )
    return Selection(of, found[of])


def changed(experiment: Experiment, configs: Sequence[Any], settings: Sequence[str]) -> list[Any]:
    """Return the configurations with the settings changed; configurations that become equal appear once."""
    name, known_fields = experiment.name, fields(experiment.config.Config)
    kinds = get_type_hints(experiment.config.Config)
    changes = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in kinds:
            known = ", ".join(f"{field.name}: {_kind_name(kinds[field.name])}" for field in known_fields)
            rule = f"--set takes KEY=VALUE with a setting of {name}, which are {known}"
            instead = f"; write {key}=VALUE" if key in kinds else meant(key, kinds)
            raise ValueError(f"{rule}; got {setting!r}{instead}")
        try:
            changes[key] = _value(text, kinds[key])
        except ValueError:
            rule = f"{key} of {name} must be {_kind_name(kinds[key])}"
            raise ValueError(f"--set {setting}: {rule}; got {text!r}") from None
    try:
        return list(dict.fromkeys(replace(config, **changes) for config in configs))
    except ValueError as problem:
        own = [key for key in CHOSEN if key in changes and changes[key] in {getattr(config, key) for config in configs}]
        options = " ".join(f"--{key} {shlex.quote(changes[key])}" for key in own)
        instead = f"; {options} chooses the runs of {name} that have it" if own else ""
        raise ValueError(f"{problem}{instead}") from problem


def meant(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about a word that is not known, which asks for the one that is most like it."""
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _value(text: str, kind: Any) -> Any:
    """Read a text as a value of an annotated type; commas separate the items of a tuple."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for one in sorted(arguments, key=lambda argument: argument is str):  # str comes last, since any text is one
            with suppress(ValueError):
                return _value(text, one)
    elif origin is Literal:
        words = {str(one): one for one in arguments}
        if text in words:
            return words[text]
    elif origin is tuple:
        items = [item.strip() for item in text.strip("()").split(",") if item.strip()]
        inner = arguments[:1] * len(items) if arguments[-1] is Ellipsis else arguments
        if len(items) == len(inner) and not any(get_origin(one) is tuple for one in inner):
            return tuple(map(_value, items, inner))
    elif kind in (bool, type(None)):
        words = {"true": True, "false": False} if kind is bool else {"none": None}
        if text.lower() in words:
            return words[text.lower()]
    elif kind in (int, float, str):
        return kind(text)
    raise ValueError(text)


def _kind_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
