"""replace_head finds the classifier of real networks, and what it replaced predicts with uncertainty."""

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

import stationary as st

TORCHVISION = {
    "resnet18": "fc",
    "googlenet": "fc",
    "shufflenet_v2_x0_5": "fc",
    "regnet_y_400mf": "fc",
    "densenet121": "classifier",
    "mobilenet_v2": "classifier.1",
    "mobilenet_v3_small": "classifier.3",
    "efficientnet_b0": "classifier.1",
    "convnext_tiny": "classifier.2",
    "vgg11": "classifier.6",
    "vit_b_16": "heads.head",
    "swin_t": "head",
}
TORCHVISION_OPTIONS = {
    "googlenet": {"init_weights": False},
    "vgg11": {"init_weights": False},
    "vit_b_16": {"image_size": 32},
}

TIMM = {
    "resnet18": "fc",
    "densenet121": "classifier",
    "mobilenetv3_small_050": "classifier",
    "efficientnet_lite0": "classifier",
    "convnext_atto": "head.fc",
    "regnetx_002": "head.fc",
    "vit_tiny_patch16_224": "head",
    "swin_tiny_patch4_window7_224": "head.fc",
    "mixer_s32_224": "head",
    "xcit_nano_12_p16_224": "head",
    "pvt_v2_b0": "head",
    "mobilevit_xxs": "head.fc",
    "caformer_s18": "head.fc.fc2",
    "inception_next_atto": "head.fc2",
    "efficientvit_m0": "head.linear",
    "legacy_seresnet18": "last_linear",
}
TIMM_SIZES = {"mixer_s32_224": 224, "swin_tiny_patch4_window7_224": 224, "efficientvit_m0": 224}
SMALL = {"vit_tiny_patch16_224": {"img_size": 64}}

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 5,
    "vocab_size": 20,
    "max_position_embeddings": 16,
}
IMAGES = {key: SIZES[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
STAGES = {"num_labels": 5, "hidden_sizes": [8, 16], "depths": [1, 1]}
HUGGING_FACE = {
    "Bert": (SIZES, "classifier"),
    "Roberta": (SIZES, "classifier.out_proj"),
    "XLMRoberta": (SIZES, "classifier.out_proj"),
    "Electra": ({**SIZES, "embedding_size": 16}, "classifier.out_proj"),
    "ModernBert": ({**SIZES, "pad_token_id": 0}, "classifier"),
    "DistilBert": (
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 20, "num_labels": 5},
        "classifier",
    ),
    "ViT": ({**IMAGES, "image_size": 32, "patch_size": 8, "num_labels": 5}, "classifier"),
    "ResNet": ({**STAGES, "embedding_size": 8}, "classifier.1"),
    "ConvNext": ({**STAGES, "num_stages": 2}, "classifier"),
}
PIXELS = {"pixel_values": torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
TOKENS = {"input_ids": torch.arange(24).view(3, 8) % 18 + 2}


@pytest.fixture(autouse=True)
def _same_randomness():
    torch.manual_seed(0)


def hugging_face(name):
    options, path = HUGGING_FACE[name]
    kind, inputs = ("Sequence", TOKENS) if "vocab_size" in options else ("Image", PIXELS)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}For{kind}Classification")(config).eval(), path, inputs


def check(model, path, inputs):
    """The classifier is where it should be and gives the outputs; the head in its place makes the model doubt."""
    head = st.StationaryHead(model.get_submodule(path).in_features, 7)
    nn.init.normal_(head.hidden.bias)  # untrained trunks give features near 0, where no unit would be active
    assert st.replace_head(model.eval(), head) is model
    assert model.get_submodule(path) is head
    predictive = st.predict(model, inputs, st.MCDropout(5, last_layer=True))
    assert isinstance(predictive, st.Categorical) and predictive.probs.shape[1] == 7
    assert (predictive.mutual_information() > 0).all()


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    model = torchvision.models.get_model(name, weights=None, **TORCHVISION_OPTIONS.get(name, {}))
    check(model, TORCHVISION[name], torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    model = timm.create_model(name, pretrained=False, **SMALL.get(name, {}))
    check(model, TIMM[name], torch.randn(2, 3, *[TIMM_SIZES.get(name, 64)] * 2))
    assert model.num_classes == 7


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face(name):
    model, path, inputs = hugging_face(name)
    check(model, path, inputs)
    assert model.num_labels == model.config.num_labels == len(model.config.id2label) == 7
    model(**inputs, labels=torch.tensor([0, 3, 6])).loss.backward()
    assert model.get_submodule(path).hidden.weight.grad.abs().sum() > 0


def test_a_language_model_that_scores_every_token():
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2, pad_token_id=0, num_labels=5
    )
    model = st.replace_head(transformers.GPT2ForSequenceClassification(config), st.StationaryHead(16, 7))
    assert isinstance(model.score, st.StationaryHead)
    assert (st.predict(model, TOKENS, st.MCDropout(5)).mutual_information() > 0).all()
    with pytest.raises(ValueError, match="leave last_layer out"):  # one token of many becomes the output
        st.predict(model, TOKENS, st.MCDropout(5, last_layer=True))


def test_a_model_of_timm_in_hugging_face():
    config = transformers.TimmWrapperConfig(architecture="resnet18", num_labels=5, initializer_range=0.02)
    check(transformers.TimmWrapperForImageClassification(config), "timm_model.fc", PIXELS)


CANNOT_TELL = {
    "convolution": (lambda: torchvision.models.squeezenet1_0(weights=None), "SqueezeNet has no linear classifier"),
    "timm convolution": (lambda: timm.create_model("dla46_c"), "DLA has no linear classifier"),
    "two": (lambda: timm.create_model("deit_tiny_distilled_patch16_224"), "more than one classifier: head, head_dist"),
    "branches": (lambda: timm.create_model("crossvit_tiny_240"), "more than one classifier: head.0, head.1"),
    "features": (lambda: timm.create_model("resnet18", num_classes=0), r"use nn.Sequential\(model, head\)"),
}


@pytest.mark.parametrize("case", CANNOT_TELL)
def test_where_it_cannot_tell(case):
    build, message = CANNOT_TELL[case]
    with pytest.raises(ValueError, match=message):
        st.replace_head(build(), st.StationaryHead(512, 7))


def test_features_take_a_head_behind_them():
    model = nn.Sequential(timm.create_model("resnet18", num_classes=0), st.StationaryHead(512, 5))
    check(model, "1", torch.randn(2, 3, 32, 32))
