"""torchvision's wheel is built for CUDA: beside a CPU torch its C++ operators do not load, and its import fails.

The import asks only that the two operators below are declared, and no model here calls them.
"""

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    LIBRARY = torch.library.Library("torchvision", "DEF")  # the declarations last as long as this object
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
