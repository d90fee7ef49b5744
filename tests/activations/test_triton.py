"""The kernels on a GPU: the same numbers and gradients as on the CPU."""

import copy

import pytest
import torch

import stationary as st
from stationary.gp import kernel_of, kernels, ntk_of

KERNELS = {
    "gaussian-2.5": lambda: kernel_of(st.Matern(2.5, 0.7)),
    "gaussian-2.2": lambda: kernel_of(st.Matern(2.2, 0.7)),
    "binary-1.5": lambda: kernel_of(st.Matern(1.5, 0.7), weights="binary"),
    "binary-2.2": lambda: kernel_of(st.Matern(2.2, 0.7), weights="binary"),
    "uniform-2.2": lambda: kernel_of(st.Matern(2.2, 0.7), bias="uniform"),
    "uniform-binary-2.2": lambda: kernel_of(st.Matern(2.2, 0.7), weights="binary", bias="uniform"),
    "envelope": lambda: kernels.MaternEnvelopeKernel(2.5),
    "matern-2.2": lambda: kernels.MaternKernel(2.2),
    "rbf-nn": lambda: kernels.RBFNNKernel(),
    "relu-deep": lambda: kernel_of(st.ReLU(), depth=2),
    "ntk": lambda: ntk_of(st.Matern(2.5), depth=2),
}


@pytest.mark.gpu
@pytest.mark.parametrize("build", KERNELS.values(), ids=KERNELS)
def test_same_numbers_as_on_the_cpu(build):
    on_cpu = build().double()
    on_gpu = copy.deepcopy(on_cpu).cuda()
    x1, x2 = torch.randn(40, 2, dtype=torch.float64), torch.randn(30, 2, dtype=torch.float64)
    for arguments in ((x1, x2), (x1, x1)):
        expected = on_cpu(*arguments).to_dense()
        matrix = on_gpu(*(x.cuda() for x in arguments)).to_dense()
        torch.testing.assert_close(matrix.cpu(), expected, rtol=1e-9, atol=1e-12)
        on_cpu.zero_grad()
        on_gpu.zero_grad()
        expected.sum().backward()
        matrix.sum().backward()
        for a, b in zip(on_cpu.parameters(), on_gpu.parameters(), strict=True):
            if a.grad is not None:
                torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(on_gpu(x1.cuda(), diag=True).cpu(), on_cpu(x1, diag=True), rtol=1e-9, atol=1e-12)
