"""torchvision's wheel is built for CUDA, and is imported by libraries that are tested beside a CPU torch."""

from stationary.lab.torchvision_operators import declare

declare()
