"""GPyTorch's exact Gaussian process with given numbers: a reference for the head of infinite width."""

import gpytorch
import torch


class ExactGP(gpytorch.models.ExactGP):
    def __init__(self, x, y, kernel):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def exact(x, y, new, nu, lengthscale, variance, noise):
    """Mean and covariance of the function, in float64 and by Cholesky factors; nu None is the RBF kernel."""
    base = gpytorch.kernels.RBFKernel() if nu is None else gpytorch.kernels.MaternKernel(nu)
    model = ExactGP(x, y, gpytorch.kernels.ScaleKernel(base)).double()
    model.covar_module.base_kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    model.covar_module.outputscale, model.likelihood.noise = variance, noise
    model.eval()
    with (
        torch.no_grad(),
        gpytorch.settings.fast_computations(False, False, False),
        gpytorch.settings.fast_pred_var(False),
    ):
        result = model(new)
        return result.mean, result.covariance_matrix
