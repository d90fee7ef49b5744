"""The network of the paper's CIFAR-10 experiment: GoogLeNet for images of 32 x 32 pixels."""

import torch
from torch import Tensor, nn

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)  # mean of red, green and blue over the training images, on a scale of 0 to 1
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


def normalised(images: Tensor) -> Tensor:
    """Return CIFAR-10 images as ``GoogLeNet`` takes them.

    Over the training images each channel has the mean 0 and the standard deviation 1.

    Args:
        images: raw pixels, (n, 3, 32, 32), uint8.

    Returns:
        A tensor of the same shape and memory format, in PyTorch's default float type.
    """
    if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.shape[1:] != (3, 32, 32):
        raise ValueError(
            f"images must be a uint8 tensor of shape (n, 3, 32, 32), got {_kind(images)}; "
            "pass the raw bytes, channels first (images.permute(0, 3, 1, 2) if they come last)"
        )
    mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in (CIFAR10_MEAN, CIFAR10_STD))
    return (images / 255 - mean) / std


class GoogLeNet(nn.Module):
    """Inception blocks (Szegedy et al., 2015) behind one convolution at full resolution, without auxiliary classifiers.

    The paper's network has 512 stationary units between the 1024 features and the classes:

        >>> model = replace_head(GoogLeNet(10), StationaryHead(1024, 5, hidden=512))

    Args:
        n_classes: number of classes, the outputs of the last layer; ``GoogLeNet(10)`` has 5,490,986 parameters.
    """

    stem: nn.Sequential
    stage3: nn.Sequential
    stage4: nn.Sequential
    stage5: nn.Sequential
    head: nn.Linear

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        if not isinstance(n_classes, int) or n_classes < 1:
            raise ValueError(f"n_classes must be a positive integer, got {n_classes!r}; CIFAR-10 has 10")
        # The layers keep PyTorch's default initialisation, since it gives all filters the same norm |w|. Before
        # BatchNorm the relative step of SGD goes with 1/|w|^2, and Kaiming's initialisation with fan_out has far
        # larger |w| in the narrow 1x1 convolutions.
        self.stem = _convolution(3, 192, size=3)
        self.stage3 = nn.Sequential(  # 32 x 32 pixels
            Inception(192, 64, (96, 128), (16, 32), 32),
            Inception(256, 128, (128, 192), (32, 96), 64),
        )
        self.stage4 = nn.Sequential(  # 16 x 16
            nn.MaxPool2d(3, stride=2, padding=1),
            Inception(480, 192, (96, 208), (16, 48), 64),
            Inception(512, 160, (112, 224), (24, 64), 64),
            Inception(512, 128, (128, 256), (24, 64), 64),
            Inception(512, 112, (144, 288), (32, 64), 64),
            Inception(528, 256, (160, 320), (32, 128), 128),
        )
        self.stage5 = nn.Sequential(  # 8 x 8
            nn.MaxPool2d(3, stride=2, padding=1),
            Inception(832, 256, (160, 320), (32, 128), 128),
            Inception(832, 384, (192, 384), (48, 128), 128),
        )
        self.head = nn.Linear(1024, n_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the features (n, 1024) of normalised images: the last feature maps, averaged over their pixels."""
        if not x.is_floating_point() or x.shape[1:] != (3, 32, 32):
            raise ValueError(
                f"x must be a float tensor of shape (n, 3, 32, 32), got {_kind(x)}; "
                "stationary.lab.models.googlenet.normalised makes it from uint8 images"
            )
        return self.stage5(self.stage4(self.stage3(self.stem(x)))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Inception(nn.Module):
    """Four branches that see the same input; their channels, one after the other, are the output.

    Args:
        in_channels: number of channels of the input.
        one: number of channels of the branch with a 1x1 convolution.
        three: numbers of channels of the 1x1 convolution and of the 3x3 convolution behind it in the second branch.
        five: numbers of channels of the same two in the third branch, which has a 5x5 convolution in the article.
        pool: number of channels of the 1x1 convolution behind the max-pool in the last branch.
    """

    one: nn.Sequential
    three: nn.Sequential
    five: nn.Sequential
    pool: nn.Sequential

    def __init__(self, in_channels: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> None:
        super().__init__()
        self.one = _convolution(in_channels, one, size=1)
        self.three = nn.Sequential(_convolution(in_channels, three[0], size=1), _convolution(*three, size=3))
        # 3x3 here too, as in torchvision: so, and without biases, the network has 5,490,986 parameters.
        self.five = nn.Sequential(_convolution(in_channels, five[0], size=1), _convolution(*five, size=3))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _convolution(in_channels, pool, size=1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


def _convolution(n_in: int, n_out: int, *, size: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, size, padding=size // 2, bias=False),  # BatchNorm adds one
        nn.BatchNorm2d(n_out, eps=0.001),
        nn.ReLU(inplace=True),
    )


def _kind(x: object) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
