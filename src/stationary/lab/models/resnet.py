"""The residual networks of He et al. (2016) for small images: ResNet-20, and as wide and deep as their ResNet-18."""

from torch import Tensor, nn
from torch.nn import functional as F


class ResNet(nn.Module):
    """A convolution, stages of residual blocks, the mean over all places, and a linear layer.

    The features, which enter the linear layer, are at least 0; there are as many as the last stage has channels. With
    three blocks and the default widths it is a ResNet-20, with two and the widths 64, 128, 256 and 512 a ResNet-18.

    Args:
        n_classes: number of classes.
        in_channels: number of channels of the images.
        widths: number of channels of each stage; from the second on, a stage halves height and width.
        blocks: number of blocks of each stage.
    """

    first: nn.Sequential
    stages: nn.Sequential
    head: nn.Linear

    def __init__(
        self, n_classes: int, in_channels: int = 1, widths: tuple[int, ...] = (16, 32, 64), blocks: int = 3
    ) -> None:
        super().__init__()
        convolution = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        self.first = nn.Sequential(convolution, nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True))
        self.stages = nn.Sequential()
        before = widths[0]
        for number, width in enumerate(widths):
            rest = [Block(width, width) for _ in range(blocks - 1)]
            self.stages.append(nn.Sequential(Block(before, width, stride=2 if number else 1), *rest))
            before = width
        self.head = nn.Linear(before, n_classes)

    def features(self, x: Tensor) -> Tensor:
        """(n, d) features of images (n, channels, height, width)."""
        return self.stages(self.first(x)).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Block(nn.Module):
    """Two convolutions around which the input is carried.

    Where the shape changes, the input is thinned out and padded with channels of zeros, which has no weights.
    """

    def __init__(self, before: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.stride, self.more = stride, width - before

    def forward(self, x: Tensor) -> Tensor:
        carried = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(self.body(x) + carried)
