"""The trunk of CIFAR-10: what it is trained on and how, that it continues where it stopped, its files and features."""

import copy
import hashlib
import json
import math
from dataclasses import asdict, replace
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from stationary._files import cache_folder
from stationary.lab.data import cifar10
from stationary.lab.experiments.cifar10 import trunk
from stationary.lab.models import GoogLeNet
from stationary.lab.models.googlenet import normalised

RECIPE = trunk.TrunkRecipe(epochs=4, batch_size=100)
IMAGES = cifar10.generated(430, 90, seed=1)

pytestmark = pytest.mark.usefixtures("kept_each_epoch")


class Tiny(nn.Module):
    def __init__(self, n_classes, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3, stride=4, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, n_classes)

    def features(self, x):
        return self.body(x).mean((2, 3))

    def forward(self, x):
        return self.head(self.features(x))


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    """No test reads or writes the data and the caches of whoever runs it, nor what another test has computed."""
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    forget()
    yield
    forget()


def forget():
    """What a new process would not know."""
    trunk.images_of.cache_clear()
    trunk.features.cache_clear()


def trained(images=IMAGES, recipe=RECIPE, **options):
    return trunk.train_trunk(images, recipe, build=Tiny, **options)


def same(ours, theirs):
    a, b = ours.state_dict(), theirs.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def changed(images, *, unknown):
    """The images with others in place of those of the unknown, or of the known classes."""

    def part(x, y):
        rows = (y >= 5) == unknown
        return cifar10.Part(torch.where(rows[:, None, None, None], 255 - x, x), y)

    return cifar10.Images((part(images.x_train, images.y_train),), part(images.x_test, images.y_test))


# Augmentation


def shifted(images, down, right):
    """out[y, x] = in[y + down, x + right], and 0 where there is no such pixel."""
    out = torch.zeros_like(images)
    to, of = ([slice(max(0, sign * s), 32 + min(0, sign * s)) for s in (down, right)] for sign in (-1, 1))
    out[:, :, to[0], to[1]] = images[:, :, of[0], of[1]]
    return out


def test_augmented_images_are_shifted_and_mirrored_in_every_way():
    n, steps = 2000, range(-4, 5)
    images = torch.randint(1, 256, (n, 3, 32, 32), dtype=torch.uint8)
    out = trunk.augmented(images, torch.Generator().manual_seed(0))
    assert out.dtype == torch.uint8 and out.shape == images.shape
    assert out.is_contiguous(memory_format=torch.channels_last) and not out.is_contiguous()
    counts, explained = {}, torch.zeros(n, dtype=torch.long)
    for down in steps:
        for right in steps:
            for mirrored in (False, True):
                pixel = images[:, :, 16 + down, (15 if mirrored else 16) + right]
                some = (out[:, :, 16, 16] == pixel).all(1).nonzero()[:, 0]  # all others differ in this pixel
                expected = shifted(images[some], down, right)
                equal = (out[some] == (expected.flip(3) if mirrored else expected)).flatten(1).all(1)
                counts[down, right, mirrored] = int(equal.sum())
                explained[some] += equal
    assert (explained == 1).all(), "each image in one way"
    each = n / len(counts)  # 12; 162 Poisson variables
    assert min(counts.values()) > 0 and max(counts.values()) < each + 6 * math.sqrt(each)
    share = sum(count for (*_, mirrored), count in counts.items() if mirrored) / n
    assert share == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(n))


def test_augmentation_is_that_of_its_generator():
    draw = lambda seed: trunk.augmented(IMAGES.x_train, torch.Generator().manual_seed(seed))
    state = torch.get_rng_state()
    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    assert torch.equal(torch.get_rng_state(), state)


# Training


def test_training_learns_and_says_how_well(monkeypatch):
    monkeypatch.setitem(trunk.BATCH, "cpu", 7)  # of which 90 is no multiple
    seen = []
    model, curve = trained(recipe=replace(RECIPE, epochs=8), progress=seen.append)
    assert curve == seen and [list(epoch)[:3] for epoch in curve] == [["epoch", "loss", "test loss"]] * 8
    assert [("test accuracy" in epoch) for epoch in curve] == [False] * 7 + [True]
    assert [epoch["epoch"] for epoch in curve] == list(range(1, 9))
    assert 1.5 < curve[0]["loss"] < 3 and curve[-1]["loss"] < 0.7 * curve[0]["loss"]
    assert not model.training
    with torch.no_grad():
        right = model(normalised(IMAGES.x_test)).argmax(1) == IMAGES.y_test
    assert curve[-1]["test accuracy"] == right.double().mean().item() > 0.4


@pytest.mark.parametrize("n_classes", [5, 10])
def test_only_the_first_classes_are_seen(n_classes):
    recipe = replace(RECIPE, n_classes=n_classes)
    model, curve = trained(recipe=recipe)
    assert model.head.out_features == n_classes
    others, other_curve = trained(changed(IMAGES, unknown=True), recipe)
    assert (same(model, others) and curve == other_curve) == (n_classes == 5)
    assert not same(model, trained(changed(IMAGES, unknown=False), recipe)[0])
    known = IMAGES.y_test < n_classes
    with torch.no_grad():
        right = model(normalised(IMAGES.x_test[known])).argmax(1) == IMAGES.y_test[known]
    assert curve[-1]["test accuracy"] == right.double().mean().item()


def test_each_epoch_is_a_new_order_of_augmented_images(monkeypatch):
    plain, losses = [], []
    cross_entropy = nn.functional.cross_entropy

    def augment(images, generator):
        plain.append(images)
        return trunk_augmented(images, generator)

    def loss(outputs, y, *, reduction, label_smoothing):
        found = cross_entropy(outputs, y, reduction=reduction, label_smoothing=label_smoothing)
        assert label_smoothing == 0.1
        if torch.is_grad_enabled():
            losses.append(found.mean())
        return found

    trunk_augmented = trunk.augmented
    monkeypatch.setattr(trunk, "augmented", augment)
    monkeypatch.setattr(nn.functional, "cross_entropy", loss)
    _, curve = trained(recipe=replace(RECIPE, epochs=2, label_smoothing=0.1))
    assert [len(images) for images in plain] == [100] * 8, "the last 30 are left out"
    names = {image.numpy().tobytes(): i for i, image in enumerate(IMAGES.x_train)}
    first, second = ([names[i.numpy().tobytes()] for x in epoch for i in x] for epoch in (plain[:4], plain[4:]))
    assert len(set(first)) == len(set(second)) == 400 and set(first) != set(second)
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 20
    for epoch, own in zip(curve, (losses[:4], losses[4:]), strict=True):
        assert epoch["loss"] == pytest.approx(torch.stack(own).mean().item())


def test_the_same_seed_gives_the_same_network():
    state = torch.get_rng_state()
    (model, curve), (again, same_curve) = trained(), trained()
    assert same(model, again) and curve == same_curve
    assert torch.equal(torch.get_rng_state(), state), "the global randomness is left alone"


def test_the_seed_is_that_of_the_first_weights_and_of_the_order(monkeypatch):
    first, orders = [], []

    def build(n_classes):
        first.append(Tiny(n_classes))
        return copy.deepcopy(first[-1])

    def augment(images, generator, plain=trunk.augmented):
        orders.append(images)
        return plain(images, generator)

    monkeypatch.setattr(trunk, "augmented", augment)
    for seed in (0, 1, 1):
        trunk.train_trunk(IMAGES, replace(RECIPE, epochs=2, seed=seed), build=build)
    assert not same(first[0], first[1]) and same(first[1], first[2])
    one, other, again = orders[:8], orders[8:16], orders[16:]
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(other, again, strict=True))


def test_images_that_are_held_out_are_not_seen():
    """The last tenth of each class: other pixels there change nothing."""
    held = trunk.is_held_out(IMAGES.y_train)
    for label in range(10):
        mine = held[IMAGES.y_train == label]
        assert mine.sum() == len(mine) // 10 and not mine[: -mine.sum() or None].any()
    known = IMAGES.y_train < 5
    assert trunk.is_held_out(IMAGES.y_train[known]).equal(held[known]), "the same images if there are fewer classes"
    recipe = replace(RECIPE, held_out=True)
    x = torch.where(held[:, None, None, None], 255 - IMAGES.x_train, IMAGES.x_train)
    others = cifar10.Images((cifar10.Part(x, IMAGES.y_train),), IMAGES.test)
    assert same(trained(recipe=recipe)[0], trained(others, recipe)[0])
    assert not same(trained()[0], trained(others)[0])


def test_too_few_images():
    with pytest.raises(ValueError, match="batch_size must be at most the 215 training images; got 216"):
        trained(recipe=replace(RECIPE, n_classes=5, batch_size=216))


def one_cycle(step, total, recipe):
    """Half a cosine from 1/25 of the highest rate up to it, then one down to 1/250,000."""
    top, warm_up = recipe.learning_rate, recipe.warm_up * total - 1
    if step <= warm_up:
        start, end, share = top / 25, top, step / warm_up
    else:
        start, end, share = top, top / 250_000, (step - warm_up) / (total - 1 - warm_up)
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def interrupted(path, after, recipe=RECIPE):
    def stop(epoch):
        if epoch["epoch"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(recipe=recipe, checkpoint=path, progress=stop)


@pytest.mark.parametrize("after", [None, 1, 3, 4])
def test_what_was_interrupted_continues_as_if_it_was_not(tmp_path, monkeypatch, after):
    whole, curve = trained()
    rates = []

    class Watched(SGD):
        def step(self, closure=None):
            (group,) = self.param_groups
            rates.append(group["lr"])
            assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 5e-4)
            return super().step(closure)

    monkeypatch.setattr(import_module("stationary.training._optimizer"), "SGD", Watched)
    path, seen = tmp_path / "folder" / "checkpoint", []
    if after:
        interrupted(path, after)
        assert len(rates) == 4 * after and path.is_file()
    model, again = trained(checkpoint=path, progress=seen.append)
    assert same(model, whole) and again == curve and not model.training
    assert seen == curve and len(rates) == 16, "what was done is reported, and not done again"
    assert rates == pytest.approx([one_cycle(step, 16, RECIPE) for step in range(16)])


@pytest.mark.parametrize(
    "change", [{"epochs": 5}, {"seed": 1}, {"n_classes": 5}, {"learning_rate": 0.3}, {"label_smoothing": 0.1}]
)
def test_a_checkpoint_of_another_recipe_is_refused(tmp_path, change):
    path = tmp_path / "checkpoint"
    interrupted(path, 1)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint .*must (belong to this training|hold networks like those)"):
        trained(recipe=replace(RECIPE, **change), checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[:-100], lambda content: b"text" * 99])
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    path = tmp_path / "checkpoint"
    interrupted(path, 1)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"checkpoint {path} cannot be read .*; delete it to start anew"):
        trained(checkpoint=path)


# Files


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    model, folder = GoogLeNet(10), tmp_path_factory.mktemp("trunk") / "new"
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(), m.running_var.uniform_(0.5, 2), m.num_batches_tracked.fill_(70_000)
    model.to(memory_format=torch.channels_last)
    curve = [{"epoch": 1, "loss": 2.5, "test accuracy": 0.25}]
    path = trunk.save_trunk(folder, model, trunk.TrunkRecipe(seed=3), curve, {"device": "cuda", "wall_s": 1.5})
    return model, path


def test_weights_are_kept_in_16_bits(saved):
    model, path = saved
    assert path.name == "trunk-10.safetensors" and 10.9e6 < path.stat().st_size < 11.2e6
    loaded = trunk.load_trunk(path)
    assert isinstance(loaded, GoogLeNet) and not any(m.training for m in loaded.modules())
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if tensor.is_floating_point():
            assert after[name].dtype == torch.float32 and torch.equal(after[name], tensor.half().float()), name
        else:
            assert torch.equal(after[name], tensor) and tensor == 70_000


def test_beside_the_weights_is_how_they_came_about(saved):
    _, path = saved
    assert sorted(p.name for p in path.parent.iterdir()) == ["trunk-10.json", "trunk-10.safetensors"]
    about = json.loads((path.parent / "trunk-10.json").read_text())
    assert about == {
        "recipe": asdict(trunk.TrunkRecipe(seed=3)),
        "environment": {"device": "cuda", "wall_s": 1.5},
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "curve": [{"epoch": 1, "loss": 2.5, "test accuracy": 0.25}],
    }


def test_the_number_of_classes_is_in_the_file(tmp_path):
    path = trunk.save_trunk(tmp_path, GoogLeNet(5), trunk.TrunkRecipe(n_classes=5), [], {})
    assert path == tmp_path / "trunk-5.safetensors" and trunk.load_trunk(path).head.out_features == 5


def test_a_damaged_trunk_is_named(saved, tmp_path):
    path = tmp_path / "trunk-10.safetensors"
    for content in (b"", b"version https://git-lfs.github.com/spec/v1", saved[1].read_bytes()[:-1]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path} is damaged .*; restore it, or delete it and train again"):
            trunk.load_trunk(path)


def put(folder, content=b"weights", n_classes=10):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"trunk-{n_classes}.safetensors"
    path.write_bytes(content)
    return path


def test_where_trunks_are_looked_for(tmp_path, monkeypatch):
    found = lambda: trunk.find_trunk(10).resolve()
    last = put(tmp_path / "cache")
    assert found() == last
    middle = put(tmp_path / "results" / "cifar10")
    assert found() == middle
    monkeypatch.setenv("STATIONARY_DATA", str(tmp_path / "data"))
    assert found() == middle
    first = put(tmp_path / "data")
    assert found() == first
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STATIONARY_DATA", "~/data")
    assert found() == first
    with pytest.raises(FileNotFoundError):
        trunk.find_trunk(5)


@pytest.mark.parametrize(("n_classes", "setting"), [(10, "paper"), (5, "strict")])
def test_without_a_trunk_the_error_says_where_and_what_next(tmp_path, monkeypatch, n_classes, setting):
    monkeypatch.setenv("STATIONARY_DATA", "/of/variable")
    with pytest.raises(FileNotFoundError) as error:
        trunk.find_trunk(n_classes)
    name = f"trunk-{n_classes}.safetensors"
    places = f"/of/variable/{name} or results/cifar10/{name} or {tmp_path}/cache/{name}"
    assert f"no trained network {places}; run this in a checkout, which has it, or train it " in str(error.value)
    assert str(error.value).endswith(f"stationary trunk {setting} --device cuda")


# Features


@pytest.mark.slow
def test_generated_features(tmp_path, monkeypatch):
    """With GoogLeNet itself, and therefore few images."""
    asked, generated = [], cifar10.generated
    monkeypatch.setattr(cifar10, "generated", lambda *a, **k: asked.append((a, k)) or generated(16, 10, seed=0))
    split = trunk.features("generated", "cpu")
    assert trunk.features("generated", "cpu") is split, "once for each process"
    assert asked == [((120, 80), {"seed": 0})] and trunk.images_of("generated") is trunk.images_of("generated")
    images = trunk.images_of("generated")
    known = images.y_train < 5
    assert split.y_train.tolist() == images.y_train[known].tolist() and set(split.y_train.tolist()) == set(range(5))
    assert split.y_test.tolist() == images.y_test.tolist() and set(split.y_test.tolist()) == set(range(10))
    assert split.x_train.shape == (int(known.sum()), 1024) and split.x_test.shape == (10, 1024)
    assert split.class_names == cifar10.CLASSES and len(split.feature_names) == 1024
    for x in split.train[0], split.test[0]:
        assert x.dtype == torch.float32 and torch.equal(x, x.half().float()) and x.min() >= 0
        assert (x.std(0) / x.mean(0).clamp(min=1e-3)).median() > 0.1, "they depend on the image"
    assert not (tmp_path / "cache").exists()
    state = torch.get_rng_state()
    forget()
    again = trunk.features("generated", "cpu")
    assert again is not split and torch.equal(again.x_train, split.x_train) and torch.equal(again.x_test, split.x_test)
    assert torch.equal(torch.get_rng_state(), state)


class Counted(Tiny):
    """Counts the images it sees; raises where it may see no more."""

    def __init__(self):
        super().__init__(10)
        self.seen, self.limit = 0, math.inf

    def features(self, x):
        if self.seen + len(x) > self.limit:
            raise KeyboardInterrupt
        self.seen += len(x)
        assert x.is_contiguous(memory_format=torch.channels_last), "which is faster"
        return super().features(x)


@pytest.fixture
def model(monkeypatch, tmp_path):
    """In place of the trunk; and 20 images of known classes and 25 test images, in pieces of 6 and batches of 4."""
    monkeypatch.setattr(trunk, "FEATURES", 8)
    monkeypatch.setattr(trunk, "CHUNK", 6)
    monkeypatch.setitem(trunk.BATCH, "cpu", 4)
    monkeypatch.setattr(cifar10, "load", lambda: cifar10.generated(40, 25, seed=2))
    put(tmp_path / "results" / "cifar10"), put(tmp_path / "results" / "cifar10", n_classes=5)
    model = Counted().eval()
    monkeypatch.setattr(trunk, "load_trunk", lambda path: model)
    return model


def anew(setting="paper"):
    forget()
    return trunk.features(setting, "cpu")


def pieces():
    return sorted(cache_folder().glob("*.npz"))


def test_features_are_computed_once(model):
    split = anew()
    assert model.seen == 20 + 25 and trunk.features("paper", "cpu") is split
    images = cifar10.generated(40, 25, seed=2)
    known = images.y_train < 5
    for x, pixels in ((split.x_train, images.x_train[known]), (split.x_test, images.x_test)):
        with torch.no_grad():
            expected = Tiny.features(model, normalised(pixels))
        torch.testing.assert_close(x, expected, rtol=2**-10, atol=1e-6)
        assert torch.equal(x, x.half().float())
    assert torch.equal(split.y_train, images.y_train[known]) and torch.equal(split.y_test, images.y_test)
    assert split.feature_names == tuple(f"feature {i}" for i in range(8))
    assert len(pieces()) == 4 + 5
    again = anew()
    assert model.seen == 45, "the others are from the cache"
    assert torch.equal(again.x_train, split.x_train) and torch.equal(again.x_test, split.x_test)


def test_features_belong_to_the_bytes_of_the_trunk(model, tmp_path):
    anew()
    anew("strict")
    assert model.seen == 45, "the same bytes"
    put(tmp_path / "results" / "cifar10", b"other weights", n_classes=5)
    anew()
    assert model.seen == 45
    anew("strict")
    assert model.seen == 2 * 45 and len(pieces()) == 2 * 9


@pytest.mark.parametrize("limit", [5, 13, 30])
def test_interrupted_features_continue(model, limit):
    model.limit = limit
    with pytest.raises(KeyboardInterrupt):
        anew()
    done = 6 * len(pieces()) if limit <= 20 else 20 + 6 * (len(pieces()) - 4)
    assert limit - 6 <= done <= limit
    model.limit, model.seen = math.inf, 0
    split = anew()
    assert model.seen == 45 - done
    for path in pieces():
        path.unlink()
    whole = anew()
    assert torch.equal(whole.x_train, split.x_train) and torch.equal(whole.x_test, split.x_test)


@pytest.mark.parametrize("damage", ["empty", "truncated", "other arrays"])
def test_damaged_features_are_computed_again(model, damage):
    before = anew()
    path = next(path for path in pieces() if "-test-6-6" in path.name)
    content = path.read_bytes()
    if damage == "other arrays":
        np.savez(path, x=np.zeros(3))
    else:
        path.write_bytes(b"" if damage == "empty" else content[: len(content) // 2])
    model.seen = 0
    again = anew()
    assert model.seen == 6 and torch.equal(again.x_test, before.x_test) and len(pieces()) == 9
    model.seen = 0
    anew()
    assert model.seen == 0


def test_features_of_copies(model):
    """Each copy of a training image is shifted and mirrored in its own way; test images are as they are."""
    plain = anew()
    split = trunk.features("paper", "cpu", copies=3)
    assert torch.equal(split.x_test, plain.x_test) and torch.equal(split.y_train, plain.y_train.repeat(3))
    images = cifar10.generated(40, 25, seed=2)
    known = images.x_train[images.y_train < 5]
    for k, part in enumerate(split.x_train.chunk(3)):
        shown = trunk.augmented(known, torch.Generator().manual_seed(k))
        with torch.no_grad():
            expected = Tiny.features(model, normalised(shown))
        torch.testing.assert_close(part, expected, rtol=2**-10, atol=1e-6)
        assert not torch.equal(part, plain.x_train)
    model.seen = 0
    forget()
    trunk.features("paper", "cpu", copies=3)
    assert model.seen == 0, "they are cached too"


def test_a_trunk_that_is_not_its_own(tmp_path):
    path = trunk.save_trunk(tmp_path, GoogLeNet(5), trunk.TrunkRecipe(n_classes=5), [], {})
    trunk.load_trunk(path)
    about = path.with_suffix(".json")
    about.write_text(about.read_text().replace(hashlib.sha256(path.read_bytes()).hexdigest(), "0" * 64))
    with pytest.raises(ValueError, match=r"is not the file that trunk-5\.json describes"):
        trunk.load_trunk(path)
    about.unlink()
    assert trunk.load_trunk(path).head.out_features == 5


def test_pieces_of_another_size_are_others(model, monkeypatch):
    before = anew()
    monkeypatch.setattr(trunk, "CHUNK", 10)
    assert torch.equal(anew().x_test, before.x_test)


def test_a_setting_that_is_none():
    with pytest.raises(
        ValueError, match="setting must be paper, strict, paper-held-out, strict-held-out or generated, got 'papers'"
    ):
        trunk.features("papers", "cpu")
