"""torchvision beside a PyTorch without CUDA, for libraries that import it and use none of its operators.

torchvision's wheel is built for CUDA: beside a CPU torch its C++ operators do not load, and its import fails. The
import asks only that the two operators below are declared.
"""

from importlib.util import find_spec

import torch

DECLARED: list[torch.library.Library] = []  # the declarations last as long as these objects


def declare() -> None:
    """Declare the operators that torchvision's import asks for, where torchvision is installed and cannot load them."""
    if find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        DECLARED.append(library)
