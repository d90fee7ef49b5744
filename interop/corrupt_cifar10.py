"""Writes the corrupted test images of CIFAR-10 that the arena's event of calibration under shift reads.

    python interop/corrupt_cifar10.py CIFAR_DIR OUT_DIR --images 200

It needs imagecorruptions 1.1.2, in an environment of its own, since that does not work with NumPy 2:

    pip install --only-binary :all: imagecorruptions==1.1.2 numpy==1.26.4 scipy==1.11.4 scikit-image==0.20.0 \
        opencv-python-headless==4.8.1.78 "setuptools<70"
"""

import argparse
from pathlib import Path

import numpy as np
from imagecorruptions import corrupt, corruptions, get_corruption_names
from skimage.filters import gaussian

RECORD = 1 + 3 * 32 * 32

# scikit-image from 0.19 on has another word for it
corruptions.gaussian = lambda *args, multichannel=False, **options: gaussian(
    *args, channel_axis=-1 if multichannel else None, **options
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Corrupt the first test images of CIFAR-10.")
    parser.add_argument("data", type=Path, help="the folder of test_batch.bin")
    parser.add_argument("out", type=Path, help="the folder for cifar-10-corrupted.npz")
    parser.add_argument("--images", type=int, default=1000, help="number of images, the first ones")
    options = parser.parse_args()
    records = np.fromfile(options.data / "test_batch.bin", np.uint8).reshape(-1, RECORD)[: options.images]
    images = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    names = get_corruption_names("common")
    x = np.empty((len(names), 5, *images.shape), np.uint8)
    for i, name in enumerate(names):
        for severity in range(5):
            np.random.seed(100 * i + severity)  # noqa: NPY002  (imagecorruptions draws from the global generator)
            for k, image in enumerate(images):
                x[i, severity, k] = corrupt(image, corruption_name=name, severity=severity + 1)
    np.savez_compressed(options.out / "cifar-10-corrupted.npz", x=x, y=records[:, 0], names=np.array(names))


if __name__ == "__main__":
    main()
