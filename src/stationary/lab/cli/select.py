"""Which configurations: those of a scale, fewer by choice, and with settings changed."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from stationary.lab.experiments.base import Experiment

Choices: TypeAlias = Mapping[str, Sequence[str]]  # by setting, the values to choose; "all" for all that paper has


@dataclass(frozen=True)
class Selection:
    """Configurations of an experiment, and the scale that they are of."""

    scale: str
    configs: list[Any]


def choices_from(**options: Sequence[str] | None) -> Choices:
    """Options of the command line, where each value may be several with commas between them."""
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
    """The configurations of each experiment that fit the choices, with the settings changed.

    They are those of the scale. Without one, those of "demo"; but those of "paper" where a choice is "all", or demo has
    not every combination of the choices that paper has.

    Args:
        experiments: by name.
        scale: "smoke", "demo", "paper" or None.
        choices: by setting, the values to choose.
        settings: ``key=value``, to be changed in each configuration.
        strict: whether an experiment to which the choices do not apply is an error, or left out if others are left.

    Raises:
        ValueError: a choice or a setting does not fit.
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
            raise ValueError(f"--{key} does not apply to {name}, whose configurations have no {key}")
        known = list(dict.fromkeys(str(getattr(config, key)) for grid in grids.values() for config in grid))
        if unknown := [value for value in wanted if value not in (*known, "all")]:
            rule = f"--{key} of {name} must be all or among {', '.join(known)}"
            raise ValueError(f"{rule}{f' with --scale {scale}' if scale else ''}; got {', '.join(unknown)}")

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
    """The configurations with the settings changed; those that become equal are one."""
    name, known_fields = experiment.name, fields(experiment.config.Config)
    kinds = get_type_hints(experiment.config.Config)
    changes = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in kinds:
            known = ", ".join(f"{field.name}: {_kind_name(kinds[field.name])}" for field in known_fields)
            raise ValueError(f"--set takes KEY=VALUE with a setting of {name}, which are {known}; got {setting!r}")
        try:
            changes[key] = _value(text, kinds[key])
        except ValueError:
            rule = f"{key} of {name} must be {_kind_name(kinds[key])}"
            raise ValueError(f"--set {setting}: {rule}; got {text!r}") from None
    return list(dict.fromkeys(replace(config, **changes) for config in configs))


def _value(text: str, kind: Any) -> Any:
    """Text as a value of an annotated type; a tuple's items have commas between them."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for one in sorted(arguments, key=lambda argument: argument is str):  # any text is a str, so that comes last
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
