"""Two processes train one network with DistributedDataParallel, and predict the same."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel

import stationary as st

METHODS = {
    "mc": st.MCDropout(20),
    "a mask for each input": st.MCDropout(20, shared_masks=False),
    "exact": st.ExactDropout(),
    "point": st.Point(),
}


def build():
    return st.MLP(3, 4, hidden=(20, 15), activation="matern32", dropout=0.3)


def work(rank, folder):
    """What each process does; it leaves its findings in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    shared = torch.randn(50, 3)
    torch.manual_seed(1 + rank)  # other weights, other data and other masks on each
    model = build()
    found = {"start": nn.utils.parameters_to_vector(model.parameters()).detach()}
    ddp = DistributedDataParallel(model)
    found["loss"] = train(ddp, steps=20)
    found["weights"] = nn.utils.parameters_to_vector(model.parameters()).detach()
    st.calibrate_prior(ddp, torch.randn(50, 3))
    found["own calibration"] = model.head.restored_prior.variance.clone()  # DDP writes into the buffer itself
    ddp = DistributedDataParallel(model)  # knows the head's buffers now, and takes those of rank 0
    found["loss again"] = train(ddp, steps=2)
    found["calibration"] = torch.stack([*model.head.restored_prior.variance, model.head.restored_prior.reference])
    for scale in (1, 10):
        for name, method in METHODS.items():
            for way, network in (("wrapped", ddp), ("bare", ddp.module)):
                found[f"{way}, {name}, {scale}"] = st.predict(network, scale * shared, method).probs
    deep = DistributedDataParallel(nn.Sequential(nn.Linear(3, 10), nn.Dropout(0.2), st.StationaryHead(10, 4)))
    for way, network in (("wrapped", deep), ("bare", deep.module)):
        found[f"{way}, deep"] = st.predict(network, shared, METHODS["mc"]).probs
    found["state"] = ddp.state_dict()
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def train(model, steps):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 3)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (folder,), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_they_train_one_network(ranks):
    a, b = ranks
    assert not torch.equal(a["start"], b["start"]) and not torch.equal(a["loss"], b["loss"])
    assert torch.equal(a["weights"], b["weights"])
    assert not torch.allclose(a["weights"], a["start"], atol=1e-3)
    assert a["loss"][-5:].mean() < a["loss"][:5].mean()


def test_the_buffers_of_a_calibrated_head_become_those_of_rank_0(ranks):
    a, b = ranks
    assert not torch.equal(a["own calibration"], b["own calibration"])
    assert torch.equal(a["calibration"], b["calibration"])
    assert torch.equal(a["calibration"][:-1], a["own calibration"])


@pytest.mark.parametrize("case", [f"{name}, {scale}" for scale in (1, 10) for name in METHODS] + ["deep"])
def test_wrapped_or_bare_both_predict_the_same(ranks, case):
    a, b = ranks
    assert torch.equal(a[f"wrapped, {case}"], a[f"bare, {case}"])
    assert torch.equal(a[f"wrapped, {case}"], b[f"wrapped, {case}"])


def test_its_state_dict_makes_a_network_without_it(ranks):
    state = dict(ranks[0]["state"])
    consume_prefix_in_state_dict_if_present(state, "module.")
    model = build()
    model.load_state_dict(state)
    torch.manual_seed(0)
    x = torch.randn(50, 3)
    for name, method in METHODS.items():
        assert torch.equal(st.predict(model, 10 * x, method).probs, ranks[0][f"bare, {name}, 10"])
