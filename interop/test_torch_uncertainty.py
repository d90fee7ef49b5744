"""torch-uncertainty's routines read our members, and count what its own MC dropout costs beside ours."""

import copy
import time
from itertools import pairwise

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_uncertainty.methods import mc_dropout
from torch_uncertainty.routines import ClassificationRoutine, RegressionRoutine

import stationary as st
from stationary import metrics
from stationary.adapters import Estimators

MEMBERS = 16
METHODS = {
    "shared masks": st.MCDropout(MEMBERS),
    "a mask for each input": st.MCDropout(MEMBERS, shared_masks=False, seed=3),
}


def trainer(**options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return Trainer(accelerator="cpu", logger=False, **quiet, **options)


def loader(x, y, batch_size=100):
    return DataLoader(TensorDataset(x, y), batch_size)


def logged(routine, *loaders):
    """What their routine finds out on these data."""
    runner = trainer()
    runner.test(routine, list(loaders), verbose=False)
    return {name: value.item() for name, value in runner.callback_metrics.items()}


def fastest(model, x):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        with torch.no_grad():
            model(x)
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.fixture(scope="module")
def problem():
    """Three classes, a network trained on them, and inputs from elsewhere."""
    torch.manual_seed(0)
    y = torch.arange(300) % 3
    x = torch.tensor([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])[y] + torch.randn(300, 2)
    model = st.MLP(2, 3, hidden=(30, 30, 20), dropout=0.3)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, x, y, 4 * torch.randn(250, 2)


@pytest.mark.parametrize("restored", [False, True], ids=["as trained", "prior restored"])
@pytest.mark.parametrize("name", METHODS)
def test_its_metrics_of_our_members_are_our_metrics(problem, name, restored):
    model, x, y, x_out = problem
    if restored:
        model = st.calibrate_prior(copy.deepcopy(model), x)
    method = METHODS[name]
    criterion = {"is_ensemble": True, "eval_ood": True, "ood_criterion": "mutual_information"}
    routine = ClassificationRoutine(Estimators(model, method), num_classes=3, loss=None, **criterion)
    theirs = logged(routine, loader(x, y), loader(x_out, torch.zeros(250).long()))
    ours, out = (st.predict(model, part, method, batch_size=100) for part in (x, x_out))
    score_in, score_out = ours.mutual_information(), out.mutual_information()
    expected = {
        "test/cls/Acc": metrics.accuracy(ours, y),
        "test/cls/NLL": metrics.nlpd(ours, y),
        "test/cls/Brier": metrics.brier(ours, y),
        "test/cal/ECE": metrics.ece(ours, y, n_bins=15),
        "test/cls/Entropy": ours.entropy().mean().item(),
        "test/ens_Entropy": ours.expected_entropy().mean().item(),
        "test/ens_MI": score_in.mean().item(),
        "ood/Entropy": out.entropy().mean().item(),
        "ood/ens_MI": score_out.mean().item(),
        "ood/AUROC": metrics.auroc(score_in, score_out),
        "ood/AUPR": metrics.aupr(score_in, score_out),
        "ood/FPR95": metrics.fpr95(-score_out, -score_in),  # theirs accepts 95 % of what is out, ours of what is in
    }
    assert {key: theirs[key] for key in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert theirs["test/ens_MI"] > 1e-3
    assert torch.unique(score_in).numel() > 250  # no ties, which either side may break in its own way


def test_the_means_are_those_of_its_own_mc_dropout(problem):
    """Within five standard errors, for the mean output and the mean probability of each input and class."""
    model, x, _, _ = problem
    n = 1000
    ours = Estimators(copy.deepcopy(model), st.MCDropout(n, shared_masks=False)).eval()(x)
    torch.manual_seed(0)
    theirs = mc_dropout(copy.deepcopy(model), n, last_layer=True, on_batch=False).eval()(x).detach()
    for f in (lambda z: z, lambda z: z.softmax(-1)):
        a, b = (f(z.view(n, *x.shape[:1], 3).double()) for z in (ours, theirs))
        error = ((a.var(0) + b.var(0)) / n).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() <= 5 * error).all()
        assert error.min() > 0


def test_what_it_costs_by_its_own_count(record_property):
    """The trunk of the paper's network sees each input once, not once for each member.

    The routine counts the floating-point operations of one batch, and runs that batch once more for it.
    """
    torch.manual_seed(0)
    n, widths = 100, (20, 1000, 1000, 500, 50, 10)
    model = st.MLP(20, 10)
    x, y = torch.randn(2 * n, 20), torch.arange(2 * n) % 10
    wrappers = {
        "ours": lambda net: Estimators(net, st.MCDropout(MEMBERS)),
        "theirs, in one batch": lambda net: mc_dropout(net, MEMBERS, last_layer=True, on_batch=True),
        "theirs, in a loop": lambda net: mc_dropout(net, MEMBERS, last_layer=True, on_batch=False),
    }
    passes, flops, seconds = {}, {}, {}
    for name, wrap in wrappers.items():
        net, rows = copy.deepcopy(model), []
        handle = net.trunk.register_forward_hook(lambda _, args, __, rows=rows: rows.append(len(args[0])))
        routine = ClassificationRoutine(wrap(net), num_classes=10, loss=None, is_ensemble=True)
        flops[name], passes[name] = logged(routine, loader(x, y, n))["test/cplx/flops"], rows
        handle.remove()
        seconds[name] = fastest(routine.eval(), x[:n])
    assert passes["ours"] == [n] * 3
    assert passes["theirs, in one batch"] == [MEMBERS * n] * 3
    assert passes["theirs, in a loop"] == [n] * 3 * MEMBERS
    layers = [2 * n * a * b for a, b in pairwise(widths)]
    assert flops["ours"] == sum(layers) + MEMBERS * layers[-1]
    assert flops["theirs, in one batch"] == flops["theirs, in a loop"] == MEMBERS * sum(layers)
    for name in list(wrappers)[1:]:
        ratios = f"{flops[name] / flops['ours']:.1f}x the operations, {seconds[name] / seconds['ours']:.1f}x the time"
        print(f"{MEMBERS} members, batch {n}, {name}: {ratios} of ours")
        record_property(name, ratios)


def test_training_is_that_of_the_network(problem):
    model, x, y, _ = problem
    model = copy.deepcopy(model)
    before = model.head.output.weight.clone()
    routine = ClassificationRoutine(
        Estimators(model, st.MCDropout(4)),
        num_classes=3,
        loss=nn.CrossEntropyLoss(),
        is_ensemble=True,
        optim_recipe=torch.optim.Adam(model.parameters(), 0.01),
    )
    runner = trainer(max_epochs=1)
    runner.fit(routine, loader(x, y), loader(x, y))
    assert runner.callback_metrics["val/cls/Acc"] > 0.8
    assert not torch.equal(model.head.output.weight, before)
    assert routine.model.train()(x).shape == (300, 3) and routine.model.eval()(x).shape == (4 * 300, 3)


def test_an_ensemble(problem):
    model, x, _, _ = problem
    networks = nn.ModuleList([model, st.MLP(2, 3, hidden=(10,))])
    rows = Estimators(networks, st.Ensemble()).eval()(x)
    torch.testing.assert_close(rows, torch.cat([network.eval()(x) for network in networks]).detach())


def test_regression():
    torch.manual_seed(0)
    model, x, y = st.MLP(2, 1, hidden=(30, 20)), torch.randn(200, 2), torch.randn(200)
    method = st.MCDropout(MEMBERS)
    routine = RegressionRoutine(
        Estimators(model, method, family=st.Gaussian), output_dim=1, loss=None, is_ensemble=True
    )
    theirs = logged(routine, loader(x, y))
    expected = metrics.rmse(st.predict(model, x, method, family=st.Gaussian), y)
    assert theirs["test/reg/RMSE"] == pytest.approx(expected, rel=1e-5)


def test_a_method_without_members_says_so(problem):
    with pytest.raises(ValueError, match="keep_samples must be False for ExactDropout, which takes no samples"):
        Estimators(problem[0], st.ExactDropout()).eval()(problem[1])
