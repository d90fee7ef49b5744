"""The head on networks named like those of torchvision, timm and Hugging Face: 8 inputs, 6 features, 3 classes."""

import io
from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stationary as st

X = torch.linspace(-2, 2, 40).view(5, 8)


class Tiny(nn.Module):
    """A trunk, and what follows it under the names that are given, in that order."""

    def __init__(self, **layers):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh())
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


class Inception(Tiny):
    """Auxiliary classifiers that only training sees."""

    def __init__(self):
        super().__init__()
        self.aux1 = nn.Sequential(OrderedDict(fc1=nn.Linear(6, 4), fc2=nn.Linear(4, 3)))
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        x = self.trunk(x)
        return (self.fc(x), self.aux1(x)) if self.training else self.fc(x)


class Timm(Tiny):
    num_classes = 3

    def get_classifier(self):
        return self.last_linear


class TimmDistilled(Timm):
    def get_classifier(self):
        return self.last_linear, self.dist_linear


class Distilled(Tiny):
    """The mean of two classifiers, as in DeiT."""

    def __init__(self):
        super().__init__(head=nn.Linear(6, 3), head_dist=nn.Linear(6, 3))

    def forward(self, x):
        x = self.trunk(x)
        return (self.head(x) + self.head_dist(x)) / 2


class Block(nn.Module):
    """Layers under the names that are given, one after the other: ClassifierHead of timm, RobertaClassificationHead."""

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    forward = Tiny.forward


class HuggingFace(nn.Module):
    """The configuration knows the number of labels, and the loss asks it; the classifier may come before the trunk."""

    def __init__(self, **layers):
        super().__init__()
        self.config, self.num_labels = SimpleNamespace(num_labels=3), 3
        self.add_module("classifier", layers.pop("classifier"))
        self.bert = Tiny(**layers)

    def forward(self, pixel_values, labels=None):
        logits = self.classifier(self.bert(pixel_values))
        n = {self.num_labels, self.config.num_labels}
        loss = None if labels is None else F.cross_entropy(logits.view(-1, *n), labels.view(-1))
        return SimpleNamespace(logits=logits, loss=loss)


def linear(n=6, m=3):
    return nn.Linear(n, m)


@dataclass(frozen=True)
class Family:
    name: str
    build: object
    path: str


FAMILIES = [
    Family("torchvision resnet", lambda: Tiny(avgpool=nn.Identity(), fc=linear()), "fc"),
    Family("torchvision googlenet", Inception, "fc"),
    Family("torchvision densenet", lambda: Tiny(classifier=linear()), "classifier"),
    Family("torchvision efficientnet", lambda: Tiny(classifier=nn.Sequential(nn.Dropout(), linear())), "classifier.1"),
    Family(
        "torchvision mobilenet_v3",
        lambda: Tiny(classifier=nn.Sequential(linear(6, 4), nn.Hardswish(), nn.Dropout(), linear(4))),
        "classifier.3",
    ),
    Family(
        "torchvision vgg",
        lambda: Tiny(
            classifier=nn.Sequential(linear(6, 4), nn.ReLU(), linear(4, 6), nn.ReLU(), nn.Dropout(), linear())
        ),
        "classifier.5",
    ),
    Family(
        "torchvision convnext",
        lambda: Tiny(classifier=nn.Sequential(nn.LayerNorm(6), nn.Flatten(), linear())),
        "classifier.2",
    ),
    Family(
        "torchvision vit",
        lambda: Tiny(heads=nn.Sequential(OrderedDict(pre_logits=linear(6, 4), act=nn.Tanh(), head=linear(4)))),
        "heads.head",
    ),
    Family("torchvision swin", lambda: Tiny(norm=nn.LayerNorm(6), head=linear()), "head"),
    Family("timm vit", lambda: Tiny(fc_norm=nn.LayerNorm(6), head_drop=nn.Dropout(), head=linear()), "head"),
    Family("timm regnet", lambda: Tiny(head=Block(drop=nn.Dropout(), fc=linear(), flatten=nn.Identity())), "head.fc"),
    Family(
        "timm davit",
        lambda: Tiny(head=Block(norm=nn.LayerNorm(6), pre_logits=Block(fc=linear(6, 4), act=nn.Tanh()), fc=linear(4))),
        "head.fc",
    ),
    Family("timm levit", lambda: Tiny(head=Block(bn=nn.BatchNorm1d(6), linear=linear())), "head.linear"),
    Family("timm nasnet", lambda: Timm(norm=nn.LayerNorm(6), last_linear=linear()), "last_linear"),
    Family("hugging face bert", lambda: HuggingFace(dropout=nn.Dropout(), classifier=linear()), "classifier"),
    Family("hugging face distilbert", lambda: Tiny(pre_classifier=linear(6, 6), classifier=linear()), "classifier"),
    Family(
        "hugging face roberta",
        lambda: HuggingFace(classifier=Block(dense=linear(6, 6), dropout=nn.Dropout(), out_proj=linear())),
        "classifier.out_proj",
    ),
    Family(
        "hugging face modernbert",
        lambda: Tiny(head=Block(dense=linear(6, 6), norm=nn.LayerNorm(6)), classifier=linear()),
        "classifier",
    ),
    Family(
        "hugging face resnet", lambda: HuggingFace(classifier=nn.Sequential(nn.Flatten(), linear())), "classifier.1"
    ),
    Family("hugging face llama", lambda: Tiny(score=nn.Linear(6, 3, bias=False)), "score"),
    Family("sequential", lambda: nn.Sequential(linear(8, 6), nn.Tanh(), linear()), "2"),
    Family("named sequential", lambda: nn.Sequential(OrderedDict(fc=linear(8, 6), act=nn.Tanh(), out=linear())), "out"),
    Family("sequential of sequentials", lambda: nn.Sequential(Tiny(), nn.Sequential(linear(), nn.Identity())), "1.0"),
    Family("wrapper", lambda: Block(module=Tiny(fc=linear())), "module.fc"),
    Family("ours", lambda: st.MLP(8, 3, hidden=(6, 4)), "head"),
]


each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def replaced(family):
    model = family.build().eval()
    return st.replace_head(model, st.StationaryHead(model.get_submodule(family.path).in_features, 5, hidden=20))


def outputs(model, x=X):
    result = model(x)
    return getattr(result, "logits", result)


def seen_by(layer, model):
    """What the layer at this name reads when the model runs."""
    seen = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(X)
    handle.remove()
    return seen


@each_family
def test_the_head_replaces_the_classifier_and_the_trunk_stays(family):
    model = family.build().eval()
    before, n_layers = seen_by(family.path, model), len(list(model.modules()))
    width = model.get_submodule(family.path).in_features
    head, added = st.StationaryHead(width, 5), len(list(st.StationaryHead(1, 1).modules()))
    n_layers -= len(list(model.get_submodule(family.path).modules()))
    assert st.replace_head(model, head) is model
    assert model.get_submodule(family.path) is head and len(list(model.modules())) == n_layers + added
    assert outputs(model).shape == (5, 5)
    (features,), (expected,) = seen_by(family.path, model), before
    assert features.equal(expected)


@each_family
def test_by_name_as_without(family):
    model = family.build().eval()
    head = st.StationaryHead(model.get_submodule(family.path).in_features, 5)
    assert st.replace_head(model, head, name=family.path).get_submodule(family.path) is head


@each_family
def test_replaced_networks_predict(family):
    model = replaced(family)
    predictive = st.predict(model, X, st.MCDropout(5, last_layer=True))
    assert predictive.probs.shape == (5, 5) and (predictive.mutual_information() > 0).all()
    exact = st.predict(model, X, st.ExactDropout(last_layer=True))
    torch.testing.assert_close(exact.output_mean, outputs(model))


@each_family
def test_the_state_dict_goes_round(family):
    model, other = replaced(family), replaced(family)
    assert not outputs(model).equal(outputs(other))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert outputs(model).equal(outputs(other))


@each_family
def test_a_second_head_replaces_the_first(family):
    model = replaced(family)
    second = st.StationaryHead(model.get_submodule(family.path).in_features, 2)
    assert st.replace_head(model, second).get_submodule(family.path) is second
    assert outputs(model).shape == (5, 2)


def test_dropout_before_the_classifier_stays_and_acts():
    model = st.replace_head(Tiny(classifier=nn.Sequential(nn.Dropout(0.3), linear())).eval(), st.StationaryHead(6, 3))
    assert model.classifier[0].p == 0.3
    with pytest.raises(ValueError, match="last_layer=True"):
        st.predict(model, X, st.ExactDropout())
    both, last = (st.predict(model, X, st.MCDropout(200, last_layer=last)) for last in (False, True))
    assert both.output_variance.mean() > last.output_variance.mean()


def test_any_module_with_in_features_is_a_head():
    head = nn.Bilinear(6, 6, 4)
    head.in_features = 6
    assert st.replace_head(Tiny(fc=linear()), head).fc is head
    assert outputs(st.replace_head(Tiny(fc=linear()), nn.Linear(6, 4))).shape == (5, 4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_device_and_mode_are_those_of_the_old_layer(training, dtype):
    with torch.device("meta"):
        model = Tiny(fc=linear()).to(dtype).train(training)
    head = st.replace_head(model, st.StationaryHead(6, 5)).fc
    assert {p.dtype for p in head.parameters()} == {dtype} and {p.device.type for p in head.parameters()} == {"meta"}
    assert {m.training for m in head.modules()} == {training}


def test_the_models_count_of_classes_follows_the_head():
    model = Timm(norm=nn.LayerNorm(6), last_linear=linear())
    assert st.replace_head(model, st.StationaryHead(6, 5)).num_classes == 5
    wrapped = nn.Sequential(OrderedDict(module=HuggingFace(classifier=linear())))
    model = st.replace_head(wrapped, st.StationaryHead(6, 5)).module
    assert (model.num_labels, model.config.num_labels) == (5, 5)
    loss = model(X, labels=torch.arange(5)).loss
    loss.backward()
    assert model.classifier.hidden.weight.grad.abs().sum() > 0


def test_a_count_of_classes_that_the_model_derives_is_left_alone():
    class Derived(Tiny):
        @property
        def num_classes(self):
            return self.fc.out_features

    assert st.replace_head(Derived(fc=linear()), st.StationaryHead(6, 5)).num_classes == 5


def test_a_layer_with_two_names_is_replaced_under_both():
    shared = linear()
    model = st.replace_head(Block(trunk=linear(8, 6), classifier=shared, alias=shared), st.StationaryHead(6, 5))
    assert model.alias is model.classifier


class Convolutional(Tiny):
    """SqueezeNet's classifier is a convolution."""

    def __init__(self):
        nn.Module.__init__(self)
        self.features = nn.Conv2d(3, 6, 1)
        self.classifier = nn.Sequential(nn.Dropout(), nn.Conv2d(6, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


CANNOT_TELL = [
    (Distilled, r"Distilled has more than one classifier: head, head_dist; .* 'head', 'head_dist'$"),
    (
        lambda: TimmDistilled(last_linear=linear(), dist_linear=linear()),
        r"more than one .*: last_linear, dist_linear; ",
    ),
    (lambda: Tiny(heads=nn.ModuleList([linear(), linear()])), r"more than one classifier: heads.0, heads.1; .*"),
    (lambda: Tiny(aux_head=linear(), head=linear()), r"more than one classifier: aux_head, head; "),
    (lambda: Tiny(fc=linear(6, 4), out=linear(4)), r"more than one classifier: fc, out; "),
    (lambda: Tiny(head=Block(head=linear(), head_dist=linear())), r"more than one .*: head.head, head.head_dist; "),
    (Convolutional, r"Convolutional has no linear classifier by the usual names \(.*\); it has no linear layers$"),
    (lambda: Tiny(out=linear()), r"no linear classifier .* linear layers: 'trunk.0', 'trunk.3', 'out'$"),
    (lambda: Tiny(fc=nn.Identity()), r"no linear classifier .* use nn.Sequential\(model, head\)\); pass name= .*"),
    (lambda: nn.Sequential(linear(8, 6), nn.BatchNorm1d(6)), r"no linear classifier .* linear layers: '0'$"),
    (
        lambda: nn.Sequential(*[Block(a=linear(), b=linear(3, 6)) for _ in range(5)]),
        r"layers: \.\.\., '1.a', .* '4.b'$",
    ),
    (lambda: nn.Sequential(), "it has no linear layers"),
]


@pytest.mark.parametrize(("build", "message"), CANNOT_TELL)
def test_where_it_cannot_tell(build, message):
    with pytest.raises(ValueError, match=f"^name must be given, .*{message}"):
        st.replace_head(build(), st.StationaryHead(6, 3))


def test_a_name_settles_it():
    model = st.replace_head(Distilled(), st.StationaryHead(6, 3), name="head_dist")
    assert isinstance(model.head_dist, st.StationaryHead) and isinstance(model.head, nn.Linear)
    assert outputs(st.replace_head(Tiny(out=linear()), st.StationaryHead(6, 5), name="out")).shape == (5, 5)


def test_wrong_in_features():
    model = Tiny(classifier=linear())
    message = (
        r"head must have in_features=6, as 'classifier' of Tiny has, got 7; change the head, or pass name= .* 'trunk.0'"
    )
    with pytest.raises(ValueError, match=message):
        st.replace_head(model, st.StationaryHead(7, 3))
    assert isinstance(model.classifier, nn.Linear)


@pytest.mark.parametrize(
    ("name", "message"), [("fcc", "'fcc', which it does not have"), ("trunk", "'trunk', which is a Sequential")]
)
def test_wrong_name(name, message):
    with pytest.raises(
        ValueError, match=f"name must be that of a linear layer of Tiny, got {message}; .*'trunk.3', 'fc'"
    ):
        st.replace_head(Tiny(fc=linear()), st.StationaryHead(6, 3), name=name)


@pytest.mark.parametrize("head", [10, nn.Tanh(), st.StationaryHead])
def test_wrong_head(head):
    with pytest.raises(ValueError, match="head must be a module with in_features, such as StationaryHead"):
        st.replace_head(Tiny(fc=linear()), head)


@pytest.mark.parametrize("name", [None, ""])
def test_a_bare_linear_layer_has_no_classifier_inside(name):
    with pytest.raises(ValueError, match="model must have its classifier inside, got the bare Linear; use the head"):
        st.replace_head(linear(), st.StationaryHead(6, 3), name=name)
