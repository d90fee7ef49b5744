"""Deploy the uncertainty: mean and standard deviation of a classifier's outputs from one ONNX file, without PyTorch.

``exact_predictor`` turns a trained network with a StationaryHead into plain layers that return both, over all dropout
masks and with the restored prior. ONNX Runtime gives the same numbers, near the data and far from them.

    pip install onnx onnxscript onnxruntime
    python examples/onnx_export.py --out out/examples
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import stationary as st


def main(out: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    x, y = torch.tensor(StandardScaler().fit_transform(x), dtype=torch.float32), torch.tensor(y)
    build = partial(st.MLP, 30, 2, hidden=(50,))
    [model] = st.fit(st.ExactDropout(), build, (x, y), st.Training(epochs=100)).networks
    st.calibrate_prior(model, x)

    path = out / "classifier.onnx"
    torch.onnx.export(
        st.exact_predictor(model),
        (x[:2],),
        path,
        input_names=["x"],
        output_names=["mean", "std"],
        dynamic_shapes=({0: torch.export.Dim("rows")},),  # as many as you like
        dynamo=True,
        external_data=False,  # the weights in the same file
        verbose=False,
    )
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")

    session = onnxruntime.InferenceSession(path)
    for name, inputs in (("near", x), ("far, x 100", 100 * x)):
        mean, std = session.run(None, {"x": inputs.numpy()})
        exact = st.predict(model, inputs, st.ExactDropout())
        errors = mean - exact.output_mean.numpy(), std - exact.output_variance.sqrt().numpy()
        gap = np.median(np.abs(mean[:, 1] - mean[:, 0]))
        print(f"{name:12} median |logit difference| {gap:5.2f}, median std {np.median(std):5.2f};", end=" ")
        print(f"ONNX Runtime and PyTorch differ by at most {np.abs(errors).max():.0e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/examples"), help="folder for the ONNX file")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(arguments.out)
