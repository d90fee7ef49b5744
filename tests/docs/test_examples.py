"""Every example runs, writes its picture where it is told to, and shows what it says; so do the tutorials."""

import re

import pages
import pytest

ROOT = pages.ROOT
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def rows(printed):
    """The numbers of each line, by the words in front of them."""
    found = {}
    for line in printed.splitlines():
        if match := re.match(r"(\S.*?)\s{2,}(-?\d.*)", line):
            found[match[1]] = [float(number) for number in pages.NUMBER.findall(match[2])]
    return found


@pytest.fixture
def example(tmp_path):
    def run(name, *arguments):
        return pages.run_example(ROOT / "examples" / f"{name}.py", tmp_path, *arguments)

    return run


def test_every_example_has_a_test():
    assert EXAMPLES
    assert set(EXAMPLES) == {name.removeprefix("test_") for name in globals()} & set(EXAMPLES)


@pytest.mark.slow
def test_reject_option(example, tmp_path):
    printed = example("reject_option", "--seeds", "1")
    found = rows(printed)
    stationary, relu, trees = found["handed over: year of birth as age"]
    assert stationary > 0.9 and relu < 0.5 and trees < 0.5
    assert all(0.05 < share < 0.15 for share in found["handed over: ordinary"])
    assert all(surest > all_ for surest, all_ in zip(found["accuracy, surest 90 %"], found["accuracy"], strict=True))
    assert "Hands over most slips: stationary" in printed
    assert (tmp_path / "reject_option.png").stat().st_size > 10_000


@pytest.mark.slow
def test_three_piles(example, tmp_path):
    found = rows(example("three_piles", "--draws", "5"))
    wrong, outside = found["of known people automatic and wrong"], found["of known people outside"]
    spread = 3 * (0.05 * 0.95 * (1 / 1000 + 1 / 6000) / 5) ** 0.5  # of the mean of five draws
    assert wrong[0] < 0.05 + spread and abs(outside[0] - 0.05) < spread
    assert found["of known people automatic"][0] > 0.6 and found["of people outside automatic"][0] < 0.02
    assert all((tmp_path / f"three_piles-{name}.png").stat().st_size > 10_000 for name in ("scores", "risk", "piles"))


@pytest.mark.slow
def test_image_head(example, tmp_path):
    found = rows(example("image_head", "--seeds", "1"))
    softmax, matern = found["its own softmax"], found["Matérn-5/2 head"]
    accuracy, _, *odd = matern
    bright_area, bright_accepted = odd[4:6]
    assert accuracy > 0.95 and bright_area > 0.95 and bright_accepted < 5
    assert softmax[6] < 0.3  # upside down
    assert (tmp_path / "image_head.png").stat().st_size > 10_000


def test_gp_kernel(example, tmp_path):
    printed = example("gp_kernel")
    assert all(0.7 < float(constant) < 1.3 for constant in re.findall(r"times sqrt\(width\) (\S+)", printed))
    found = rows(printed)
    relu, gaussian, uniform = (
        found[name] for name in ("ReLU", "Matérn-3/2, Gaussian bias", "Matérn-3/2, uniform bias")
    )
    assert relu[3] > 2 * relu[2] > 2 * relu[1]
    assert gaussian[3] < 0.5 * gaussian[2]
    assert uniform[3] == pytest.approx(uniform[2], rel=0.1)
    assert (tmp_path / "gp_kernel.png").stat().st_size > 10_000


def test_network_from_kernel(example, tmp_path):
    printed = example("network_from_kernel")
    plain, product = (float(error) for error in re.findall(r"in the gap (\S+)", printed))
    assert product < 0.1 < 0.5 < plain
    means = [float(error) for error in re.findall(r"mean (\d\S+),", printed)]
    assert len(means) == 3 and means[0] > 2 * means[1] > 4 * means[2]
    assert (tmp_path / "network_from_kernel.png").stat().st_size > 10_000


def test_regression_gap(example, tmp_path):
    printed = example("regression_gap")
    prior = float(re.search(r"targets is (\S+)", printed)[1])
    found = {name: numbers[-1] for name, numbers in rows(printed).items()}  # at |x| = 20
    assert found["ReLU"] > 2 * prior
    assert found["Matérn-5/2"] < 0.2 * prior
    assert found["Matérn-5/2, restored prior"] == pytest.approx(prior, rel=0.3)
    assert (tmp_path / "regression_gap.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # from within torch.onnx
def test_onnx_export(example, tmp_path):
    printed = example("onnx_export")
    assert all(float(difference) < 1e-5 for difference in re.findall(r"at most (\S+)", printed))
    near, far = (float(std) for std in re.findall(r"median std\s+([\d.]+)", printed))
    assert far > 2 * near
    assert (tmp_path / "classifier.onnx").exists()


@pytest.mark.slow
def test_posteriors(example, tmp_path):
    found = rows(example("posteriors"))
    assert len(found) == 6
    for _, nlpd, accuracy, near, far, *_ in found.values():
        assert nlpd < 0.35 and accuracy > 0.9 and far > 2 * near
    assert found["restored"][-1] > 10 * found["ExactDropout"][-1]
    assert (tmp_path / "posteriors.png").stat().st_size > 10_000


def test_radar_pulses(example, tmp_path):
    found = rows(example("radar_pulses"))
    assert len(found) == 6 and found["constant"][3] == 0
    assert all(noisy > 2 * quiet for *_, quiet, noisy in found.values())
    assert (tmp_path / "radar_pulses.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_shows_what_it_prints(page):
    for shown, printed in pages.run(page):
        assert pages.agree(shown, printed), f"{page.name} shows\n{shown}\nand prints\n{printed}\n{pages.REPAIR}"


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_shows_what_an_example_prints(page, tmp_path):
    for quote in pages.QUOTE.finditer(page.read_text()):
        printed = pages.run_example(ROOT / quote["example"], tmp_path)
        assert pages.agree(quote["shown"], printed), f"{quote['example']} prints\n{printed}\n{pages.REPAIR}"


def test_agreement_is_of_words_and_of_numbers():
    assert pages.agree("right about 85.3%\n", "right  about 85.4%")
    assert not pages.agree("right about 85.3%", "right about 60.0%")
    assert not pages.agree("right about 85.3%", "wrong about 85.3%")
    assert not pages.agree("error 3e-10", "error 3")


def test_pictures_of_the_tutorials_come_from_examples():
    """A picture has the name of its example; where that draws several, a hyphen and a word follow."""
    pictures = {name for page in TUTORIALS for name in re.findall(r"\(images/([\w-]+)\.png\)", page.read_text())}
    assert pictures and {name.partition("-")[0] for name in pictures} <= set(EXAMPLES)
    assert all((ROOT / "docs" / "tutorials" / "images" / f"{name}.png").exists() for name in pictures)
