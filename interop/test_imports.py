"""The libraries of this environment import, and their models run: what the other tests here build upon."""

import importlib

import pytest
import timm
import torch
import torchvision
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

LIBRARIES = [
    "laplace",
    "lightning",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pytorch_ood.api",
    "pytorch_ood.detector",
    "sklearn",
    "skorch",
    "stationary",
    "timm",
    "torch_uncertainty.methods",
    "torch_uncertainty.routines",
    "torchmetrics",
    "torchvision.models",
    "transformers",
]
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 5}


@pytest.mark.parametrize("library", LIBRARIES)
def test_it_imports(library):
    importlib.import_module(library)


def test_a_torchvision_model_runs():
    model = torchvision.models.resnet18(weights=None, num_classes=5).eval()
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)


def test_a_timm_model_runs():
    model = timm.create_model("resnet18", pretrained=False, num_classes=5).eval()
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)


def test_a_vision_transformer_of_hugging_face_runs():
    model = ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, **TINY)).eval()
    assert model(torch.randn(2, 3, 16, 16)).logits.shape == (2, 5)


def test_a_language_model_of_hugging_face_runs():
    model = BertForSequenceClassification(BertConfig(vocab_size=20, max_position_embeddings=8, **TINY)).eval()
    assert model(torch.randint(20, (2, 8))).logits.shape == (2, 5)
