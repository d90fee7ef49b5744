"""Recipes of a trunk: what they show the network, what they train, and what the report says of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from stationary.lab.data.augment import varied
from stationary.lab.experiments.arena import config, images, report, report_recipes, trunks
from stationary.lab.experiments.arena.protocol import JUDGES, PROTOCOL, RECIPES, RECIPES_RULE
from stationary.lab.models.resnet import ResNet

SMALL = trunks.Recipe(1, 20, 0.01, widths=(8, 8), blocks=1)


def generator():
    return torch.Generator().manual_seed(0)


# Varied images


def test_a_spot_is_turned_by_up_to_fifteen_degrees_and_stays_as_far_from_the_centre():
    x = torch.zeros(500, 3, 32, 32, dtype=torch.uint8)
    x[:, :, 15:17, 24:26] = 150  # nine pixels right of the centre, and small enough to stay one spot
    seen = varied(x, generator()).sum(1)
    seen = seen[~(seen == 3 * 127.5)[:, 10:22, 20:29].any((1, 2))]  # where the square hides nothing of the spot
    hides = seen == 3 * 127.5
    seen = (seen - 3 * 20).clamp(min=0) * ~hides  # the background, which contrast makes a little brighter, is 0
    at = torch.arange(32) - 15.5
    right, down = ((seen * place).sum((1, 2)) / seen.sum((1, 2)) for place in (at, at[:, None]))
    assert len(seen) > 200
    degrees = torch.atan2(down, right).rad2deg()
    torch.testing.assert_close(torch.hypot(right, down), torch.full_like(right, 9), atol=0.3, rtol=0)
    assert degrees.abs().max() < 15.5
    assert degrees.std().item() == pytest.approx(15 / math.sqrt(3), rel=0.1), "the angle is uniform"


def test_colours_change_and_grey_stays_grey():
    x = torch.full((400, 3, 32, 32), 100, dtype=torch.uint8)
    seen = varied(x, generator())
    assert seen.min() >= 0 and seen.max() <= 255
    torch.testing.assert_close(seen[:, 0], seen[:, 2])
    middle = seen[:, 0, 12:20, 12:20].flatten(1).median(1).values  # nothing black comes in there
    middle = middle[middle != 127.5]
    assert 55 < middle.min() < 75 and 125 < middle.max() < 145, "brightness is multiplied by 0.6 to 1.4"
    coloured = torch.tensor([200, 100, 0], dtype=torch.uint8)[:, None, None].expand(400, 3, 32, 32)
    spread = varied(coloured, generator())[:, :, 16, 16].std(1)
    assert spread.std() > 10, "saturation changes"


def test_a_square_of_a_quarter_of_the_side_is_hidden():
    x = torch.randint(0, 256, (200, 3, 32, 32), generator=generator()).to(torch.uint8)
    hidden = (varied(x, generator()) == 127.5).all(1)
    rows, columns = hidden.any(2).sum(1), hidden.any(1).sum(1)
    assert hidden.sum((1, 2)).equal(rows * columns), "it is a rectangle"
    assert rows.max() == 8 and columns.max() == 8 and rows.min() >= 4, "half of it may be outside"
    assert varied(x, generator()).equal(varied(x, generator())), "the generator decides"


# Training


def small_parts():
    x = torch.randint(0, 256, (60, 3, 16, 16), generator=generator()).to(torch.uint8)
    return {"train": (x, torch.arange(60) % 5), "test": (x, torch.arange(60) % 5)}


@pytest.mark.parametrize("changed", [{"varied": True}, {"bound": 0.5}, {"rotation": 0.5}])
def test_a_recipe_trains_a_trunk_and_its_own_way(changed):
    parts = small_parts()
    plain, other = (trunks.trained(parts, recipe, "cpu") for recipe in (SMALL, replace(SMALL, **changed)))
    assert isinstance(other, ResNet) and not other.training
    weights = [network.head.weight.detach() for network in (plain, other)]
    assert not weights[0].allclose(weights[1])
    assert trunks.arrays(other, parts, "cpu")["x test"].shape == (60, 8)


def test_bounded_convolutions_are_bounded():
    bounded = trunks.trained(small_parts(), replace(SMALL, bound=0.5), "cpu")
    norms = [
        torch.linalg.matrix_norm(module.weight.detach().flatten(1), 2).item()
        for module in bounded.modules()
        if isinstance(module, torch.nn.Conv2d)
    ]
    assert len(norms) == 5 and max(norms) == pytest.approx(0.5, rel=0.05), "a few per cent above, while weights move"


def test_the_recipes_are_those_of_the_protocol():
    assert all(name in trunks.EVENTS and images.SOURCES[name].folder == f"arena-{name}" for name in RECIPES)
    plain = trunks.EVENTS["cifar10-strict"].recipe
    longer, bounded, rotated, both = (
        trunks.EVENTS[f"cifar10-strict-{name}"].recipe for name in ("longer", "bounded", "rotated", "longer-rotated")
    )
    assert (
        f"plain recipe has {plain.epochs} epochs" in RECIPES_RULE and f"Longer: {longer.epochs} epochs" in RECIPES_RULE
    )
    assert f"is at most {bounded.bound:g}" in RECIPES_RULE and f"of weight {rotated.rotation}" in RECIPES_RULE
    assert replace(bounded, bound=None) == replace(rotated, rotation=0.0) == plain
    assert replace(both, rotation=0.0) == longer == replace(plain, epochs=60, varied=True)


# The report


def results(gains, n=3):
    """Results of all judges, whose AUROC on a recipe is above that of the plain one by this much, times 1 to n."""
    found = []
    for dataset, gain in gains.items():
        for method in JUDGES:
            for seed in range(n):
                numbers = {"accuracy": 0.9 + gain, "NLPD": 0.3, "ECE": 0.02, "seconds fit": 1.0}
                numbers |= {"AUROC: other classes": 0.8 + 0.01 * seed**2 + gain * (seed + 1)}
                numbers |= {"FPR95: other classes": 0.2, "AUPR: other classes": 0.8}
                arrays = {name: np.array([value]) for name, value in numbers.items()} | {"features": np.array(["a"])}
                found.append((config.Config(config.EVENTS[dataset], dataset, method, (seed,)), arrays))
    return found


def test_recipes_are_compared_with_the_plain_one_and_have_no_ranks():
    section = report.report(results({"cifar10-strict": 0.0, "cifar10-strict-longer": 0.01}))
    values, gains = (table for table in section.tables if "recipes of a trunk" in table.caption)
    assert values.columns == ("recipe", "accuracy", *(PROTOCOL[method].label for method in JUDGES), "seeds")
    assert [row[0] for row in values.rows] == ["plain", "longer, stronger augmentation"] and values.rows[0][-1] == 3
    [row] = gains.rows
    assert row[1].mean == pytest.approx(0.01) and row[1].std == pytest.approx(0, abs=1e-12)
    assert row[-1].mean == pytest.approx(0.02) and row[-1].std == pytest.approx(0.01 / math.sqrt(3)), "of 1, 2 and 3"
    assert "changes the AUROC of infinite width by +0.0200 ± 0.0058" in section.ours
    assert not any("longer" in table.caption for table in section.tables)
    assert {record["data"] for record in section.records} == {"cifar10-strict", "cifar10-strict-longer"}


def test_a_single_recipe_is_no_comparison():
    section = report.report(results({"cifar10-strict": 0.0}))
    assert not any("recipes" in table.caption for table in section.tables)
    found = report.by_dataset(results({"cifar10-strict": 0.0, "cifar10-strict-bounded": 0.01}))
    values, _ = report_recipes.tables(report_recipes.found_of(found), {"cifar10-strict-bounded": 12.4})
    assert [row[1] for row in values.rows] == [None, 12]
