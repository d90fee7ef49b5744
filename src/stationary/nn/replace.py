"""A head for a network that somebody else has built: torchvision, timm, Hugging Face, or your own."""

from typing import TypeVar

from torch import nn

from stationary.nn.heads import StationaryHead

M = TypeVar("M", bound=nn.Module)

CLASSIFIER_NAMES = {"classification_head", "classifier", "fc", "head", "heads", "logits_proj", "score"}
SECOND_NAMES = {"aux_head", "classifier_distill", "dist_head", "head_dist", "heads_dist"}  # of a second classifier
MANY = 8  # most names that an error message lists


def replace_head(model: M, head: nn.Module, name: str | None = None) -> M:
    """Put ``head`` in the place of the model's classifier, the linear layer that gives its outputs.

    The model is changed in place, and returned. The trunk stays as it is; the head gets the device, dtype and training
    mode of the old layer. Where the model or its configuration counts its classes (``num_classes`` in timm,
    ``num_labels`` in Hugging Face), the count follows the head, so that the loss of a Hugging Face model works. A
    second call replaces the first head.

    The model keeps its own dropout, also right before the classifier (MobileNet, EfficientNet, BERT), as one more
    active dropout in front of the head. ``MCDropout(last_layer=True)`` and ``ExactDropout(last_layer=True)``
    leave it off. They refuse a language model that scores every token and then takes one (GPT-2, Llama): use
    ``MCDropout()`` there.

    Examples:
        >>> model = replace_head(torchvision.models.resnet18(weights="DEFAULT"), StationaryHead(512, 10))

    Args:
        model: any network whose classifier is an ``nn.Linear``.
        head: the new head: a ``StationaryHead``, or any module whose ``in_features`` is that of the old layer.
        name: dotted name of the linear layer, as in ``model.named_modules()``: "fc", "classifier.1", "heads.head". By
            default it is found by the names that torchvision, timm and Hugging Face use (classifier, fc, head, heads,
            score, ...), by timm's ``get_classifier()``, or as the last layer of an ``nn.Sequential``.
    """
    in_features = getattr(head, "in_features", None)
    if not isinstance(head, nn.Module) or not isinstance(in_features, int):
        raise ValueError(f"head must be a module with in_features, such as StationaryHead(512, 10), got {head!r}")
    names = {module: path for path, module in model.named_modules()}
    old = classifier(model, name)
    if old is model:
        raise ValueError(f"model must have its classifier inside, got the bare {_type(model)}; use the head itself")
    if in_features != old.in_features:
        raise ValueError(
            f"head must have in_features={old.in_features}, as {names[old]!r} of {_type(model)} has, got "
            f"{in_features}; change the head, or {_linears(model)}"
        )
    head.to(next(old.parameters())).train(old.training)
    for path in [path for path, module in model.named_modules(remove_duplicate=False) if module is old]:
        model.set_submodule(path, head)
        _count_classes(model, path, getattr(head, "out_features", None))
    return model


def classifier(model: nn.Module, name: str | None) -> nn.Linear | StationaryHead:
    """The layer that gives the outputs: the one of this name, or where ``replace_head`` looks for it."""
    return _find(model) if name is None else _named(model, name)


def _named(model: nn.Module, name: str) -> nn.Linear | StationaryHead:
    module = dict(model.named_modules(remove_duplicate=False)).get(name)
    if not isinstance(module, nn.Linear | StationaryHead):
        got = f"{name!r}, " + ("which it does not have" if module is None else f"which is a {_type(module)}")
        raise ValueError(f"name must be that of a linear layer of {_type(model)}, got {got}; {_linears(model)}")
    return module


def _find(model: nn.Module) -> nn.Linear | StationaryHead:
    found = _classifiers(model, in_head=False)
    if not found and callable(get_classifier := getattr(model, "get_classifier", None)):
        named = get_classifier()
        found = _classifiers(nn.ModuleList(named if isinstance(named, tuple) else [named]), in_head=True)
    if len(found) != 1:
        names = {module: path for path, module in model.named_modules()}
        several = f"more than one classifier: {', '.join(names[module] for module in found)}"
        none = "no linear classifier by the usual names (if it gives features, use nn.Sequential(model, head))"
        raise ValueError(f"name must be given, {_type(model)} has {several if found else none}; {_linears(model)}")
    return found[0]


def _classifiers(module: nn.Module, *, in_head: bool) -> list[nn.Linear | StationaryHead]:
    """What may be the classifier: the child with a usual name; in a sequence, or in what has such a name, the last.

    The last is the last with parameters. A linear layer that follows the child with a usual name may be it as well.
    """
    if isinstance(module, nn.Linear | StationaryHead):
        return [module]
    children = dict(module.named_children())
    usual = [name in CLASSIFIER_NAMES | SECOND_NAMES for name in children]
    if isinstance(module, nn.ModuleList):
        chosen = list(children.values())
    elif any(usual) and not isinstance(module, nn.Sequential):
        in_head, first = True, usual.index(True)
        chosen = [m for i, m in enumerate(children.values()) if usual[i] or (i > first and isinstance(m, nn.Linear))]
    else:
        trained = [m for m in children.values() if next(m.parameters(), None) is not None]
        chosen = trained[-1:] if in_head or isinstance(module, nn.Sequential) or len(trained) == 1 else []
    return [found for child in chosen for found in _classifiers(child, in_head=in_head)]


def _count_classes(model: nn.Module, path: str, n: int | None) -> None:
    """Tell the model, its configuration and all modules around the head how many classes there are now."""
    parts = path.split(".")
    around = [model.get_submodule(".".join(parts[:i])) for i in range(len(parts))]
    for owner in [*around, *(getattr(module, "config", None) for module in around)]:
        for count in ("num_classes", "num_labels"):
            if n is not None and isinstance(before := getattr(owner, count, None), int) and before != n:
                setattr(owner, count, n)


def _linears(model: nn.Module) -> str:
    names = [repr(name) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    listed = ("..., " if len(names) > MANY else "") + ", ".join(names[-MANY:])
    return f"pass name= with one of its linear layers: {listed}" if names else "it has no linear layers"


def _type(module: nn.Module) -> str:
    return type(module).__name__
