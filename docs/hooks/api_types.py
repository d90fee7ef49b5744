"""Links types of other libraries in signatures to their own documentation, without fetching their inventories.

Types of this library that are only names for others, such as ``Inputs``, are on docs/api/types.md.
"""

import re
from typing import Any

PYTHON, TORCH = "https://docs.python.org/3/library", "https://docs.pytorch.org/docs/stable"
ABSTRACT = ("Callable", "Iterable", "Iterator", "Mapping", "Sequence")
LINKS = {
    **{f"collections.abc.{name}": f"{PYTHON}/collections.abc.html#collections.abc.{name}" for name in ABSTRACT},
    **{f"typing.{name}": f"{PYTHON}/typing.html#typing.{name}" for name in ("Any", "Literal")},
    "pathlib.Path": f"{PYTHON}/pathlib.html#pathlib.Path",
    "torch.Tensor": f"{TORCH}/tensors.html#torch.Tensor",
    "torch.device": f"{TORCH}/tensor_attributes.html#torch.device",
    "torch.Generator": f"{TORCH}/generated/torch.Generator.html",
    "torch.Size": f"{TORCH}/size.html",
    **{f"torch.nn.{name}": f"{TORCH}/generated/torch.nn.{name}.html" for name in ("Module", "Linear")},
    **{
        f"torch.distributions.{name}": f"{TORCH}/distributions.html"
        for name in ("Bernoulli", "Categorical", "Distribution", "Normal")
    },
    "numpy.ndarray": "https://numpy.org/doc/stable/reference/generated/numpy.ndarray.html",
    "numpy.random.RandomState": "https://numpy.org/doc/stable/reference/random/legacy.html",
    "pandas.DataFrame": "https://pandas.pydata.org/docs/reference/api/pandas.DataFrame.html",
    "matplotlib.axes.Axes": "https://matplotlib.org/stable/api/_as_gen/matplotlib.axes.Axes.html",
    "matplotlib.figure.Figure": "https://matplotlib.org/stable/api/_as_gen/matplotlib.figure.Figure.html",
    "gpytorch.kernels.Kernel": "https://docs.gpytorch.ai/en/stable/kernels.html",
    "botorch.models.transforms.input.AffineInputTransform": "https://botorch.readthedocs.io/en/stable/models.html",
    "sklearn.preprocessing.StandardScaler": (
        "https://scikit-learn.org/stable/modules/generated/sklearn.preprocessing.StandardScaler.html"
    ),
}


def on_pre_build(*, config: Any) -> None:
    for name, url in LINKS.items():
        config.plugins["autorefs"].register_url(name, url)


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Make the headings of the page about types known to signatures on all pages; break long names behind dots."""
    if page.file.src_uri == "api/types.md":
        for name in re.findall(r'id="(stationary\.[\w.]+)"', html):
            config.plugins["autorefs"].register_anchor(page, name)
    return re.sub(r"(?<=doc-object-name )[^>]*>[^<]+", lambda found: found[0].replace(".", ".<wbr>"), html)
