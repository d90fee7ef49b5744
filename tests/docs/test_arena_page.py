"""The page about the arena and summary.csv are what the stored runs say, and each run has its origin."""

import json
from pathlib import Path

import numpy as np
import pytest
from pages import hook

from stationary.lab.experiments.arena import report, report_recipes, report_second, report_tables
from stationary.lab.experiments.arena.config import EVENTS, FROZEN, IMAGES, TRAINING, Config, configs, one_ensemble
from stationary.lab.experiments.arena.digests import FEATURES
from stationary.lab.experiments.arena.protocol import (
    CALIBRATED,
    FROM_NETWORK,
    INFINITE_WIDTH,
    MORE_ROWS,
    PROTOCOL,
    RECIPES,
    ROWS_OF_FEATURE,
    rows,
)
from stationary.lab.experiments.arena.protocol_tables import (
    DRAWS,
    KINDS,
    OF_EVENT,
    REGRESSORS,
    TABLES_EVENT,
    VALUES_EVENT,
    rows_of_classes,
    rows_of_values,
)
from stationary.lab.experiments.arena.seeds import over_seeds

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "arena"
AGAIN = "results/arena has changed: python docs/hooks/arena.py, or mkdocs build, writes it again"


def test_the_page_is_what_the_results_say():
    text = (ROOT / "docs" / "arena.md").read_text(encoding="utf-8")
    assert hook("arena").page(ROOT) == text, AGAIN
    assert text.index("What we are not the best at") < text.index("The rules")
    assert 150 <= len(text.splitlines()) <= 250, "it is read in one go; numbers of all methods are in the details"


def test_the_page_of_details_is_what_the_results_say():
    text = (ROOT / "docs" / "arena_details.md").read_text(encoding="utf-8")
    assert hook("arena").page_of_details(ROOT) == text, AGAIN
    assert all(f"| {' | '.join(row)} |" in text for row in rows()), "the protocol is printed"


def test_the_page_of_tables_is_what_the_results_say():
    text = (ROOT / "docs" / "arena_tables.md").read_text(encoding="utf-8")
    assert hook("arena").page_of_tables(ROOT) == text, AGAIN
    assert text.index("What we are not the best at") < text.index("The rules")
    of_both = rows_of_values()[1] + rows_of_classes()[1]
    assert all(f"| {' | '.join(row)} |" in text for row in of_both), "the protocol is printed"


def test_the_summary_is_what_the_results_say():
    assert hook("arena").summary(ROOT) == (STORED / "summary.csv").read_text(), AGAIN


def test_stored_runs_are_configurations_with_an_origin():
    grid, files = set(configs("paper")), hook("arena").stored(STORED) + hook("arena").stored(STORED, tables=True)
    assert files
    for content in files:
        settings = content["config"]
        for seed in settings["seeds"]:
            assert Config(settings["event"], settings["dataset"], settings["method"], (seed,)) in grid
        for environment in content["environments"]:
            assert environment["commit"] and not environment["commit"].endswith("dirty")
            code, *_ = OF_EVENT.get(settings["event"], PROTOCOL)[settings["method"]].code.split(",")
            assert code in environment["versions"], "the versions of the peers are there"


def test_features_are_those_of_the_trunks():
    """The first trunks are those of Fashion-MNIST; others stand under their own name."""
    about = json.loads((STORED / "trunks.json").read_text())
    again = about["cifar10-imagenet"]["again"]["sha256"]  # computed again for the third configuration
    of = {"fashion-mnist": about} | {name: entry for name, entry in about.items() if "trunks" in entry}
    of |= {f"{name}-five": entry for name, entry in of.items() if name in ("cifar10", "cifar10-imagenet")}
    digests = {name: {trunk["seed"]: trunk["sha256"] for trunk in entry["trunks"]} for name, entry in of.items()}
    known = {f"arena-{name}": tuple(digests[name].values()) for name in of if not name.endswith("-five")}
    assert known | {"arena-cifar10-imagenet": (*known["arena-cifar10-imagenet"], again)} == FEATURES
    for content in hook("arena").stored(STORED):
        dataset, method, seeds = (content["config"][key] for key in ("dataset", "method", "seeds"))
        if EVENTS[dataset] in (IMAGES, TRAINING) and not one_ensemble(dataset, method):
            expected = [digests[dataset][0 if dataset in FROZEN else seed] for seed in seeds]
            assert content["numbers"]["features"] == (
                [again] * len(seeds) if method in (MORE_ROWS, CALIBRATED) else expected
            )


def test_features_that_were_computed_again_are_level_with_the_stored_ones():
    """What the third configuration stands beside was fitted to the stored ones."""
    sha256 = json.loads((STORED / "trunks.json").read_text())["cifar10-imagenet"]["again"]["sha256"]
    again = hook("arena").stored(STORED / "again")
    assert {content["config"]["method"] for content in again} >= {"knn", "she", "vim", "energy"}
    name_of = lambda content: (content["config"]["dataset"], content["config"]["method"])
    before = {name_of(content): content["numbers"] for content in hook("arena").stored(STORED)}
    for content in again:
        old, new = before[name_of(content)], content["numbers"]
        assert set(new["features"]) == {sha256} and sha256 not in old["features"]
        for measure in (name for name in new if name.startswith("AUROC: ") or name in ("NLPD", "ECE")):
            seeds = zip(content["config"]["seeds"], new[measure], strict=True)
            assert max(abs(value - old[measure][seed]) for seed, value in seeds) < 0.003, name_of(content)


@pytest.fixture(scope="module")
def found():
    """The numbers of each data set with features."""
    return {dataset: methods for (_, dataset), methods in report.by_dataset(hook("arena").results(STORED)).items()}


@pytest.fixture(scope="module")
def of_tables():
    results = hook("arena").results(STORED, tables=True)
    return report_tables.found_of(results, VALUES_EVENT), report_tables.found_of(results, TABLES_EVENT)


def ahead(methods, peer, ours, unknown):
    """Whether a peer is better than a configuration by more than a paired standard error."""
    difference = report_second.minus(methods, ours, peer, f"AUROC: {unknown}")
    return difference.mean < -difference.std


def lowest(methods, name, n=1):
    """The methods with the lowest means of those whose probabilities these are."""
    means = {method: over_seeds(of, name).mean for method, of in methods.items() if report.has_probabilities(method)}
    return set(sorted(means, key=lambda method: means[method])[:n])


def test_who_else_is_to_be_used_for_images(found):
    """The words of "When to use something else" are those of the template; here is what they rest on."""
    fashion = found["fashion-mnist"]
    gaussians = ("ddu", "mahalanobis", "rmd")
    for ours in (INFINITE_WIDTH, FROM_NETWORK):
        assert all(ahead(fashion, peer, ours, "notMNIST") for peer in gaussians)
        assert [peer for peer in gaussians if ahead(fashion, peer, ours, "MNIST")] == ["rmd"]
    of_trunk = {
        "own": ("cifar10", "cifar10-five", "cifar10-strict"),
        "frozen": ("cifar10-imagenet", "cifar10-imagenet-five"),
    }
    kinds = {
        trunk: [(found[dataset], unknown) for dataset in of for unknown in report.unknowns(found[dataset])]
        for trunk, of in of_trunk.items()
    }
    for peer in ("vim", "knn"):
        for of in kinds.values():
            assert sum(ahead(methods, peer, INFINITE_WIDTH, unknown) for methods, unknown in of) > len(of) / 2
        every = [pair for of in kinds.values() for pair in of]
        assert len(every) == 9 and sum(ahead(methods, peer, FROM_NETWORK, unknown) for methods, unknown in every) == 5
    trained = [found[dataset] for dataset, event in EVENTS.items() if event == IMAGES and dataset not in FROZEN]
    assert all(lowest(methods, "NLPD") == {"ensemble"} for methods in trained)


def test_classes_left_out_chose_the_third_configuration():
    """Its number of inducing rows by the NLPD of known rows, its score by the mean AUROC over all data sets."""
    files = {"": 300, "-clinc150": 600, "-imagenet": 3840}
    stored = {
        name: json.loads((ROOT / "results" / "benchmarks" / f"arena_left_out{name}.json").read_text())["folds"]
        for name in files
    }
    kind = "infinite width, white, network"
    mean = lambda name, method, measure: np.mean([fold["methods"][method][measure] for fold in stored[name]])
    nlpd = {n: mean("-imagenet", f"{kind}, {n:,} rows", "NLPD") for n in (1000, 2560, 3840)}
    assert min(nlpd, key=lambda n: nlpd[n]) == 1280 * ROWS_OF_FEATURE
    ece = {n: mean("-imagenet", f"{kind}, {n:,} rows", "ECE") for n in nlpd}
    assert min(ece, key=lambda n: ece[n]) == 1280 * ROWS_OF_FEATURE
    assert mean("-imagenet", "infinite width, 2,560 rows", "NLPD") < min(nlpd.values()), "as the page of details says"
    heads = {name: kind if rows < 1000 else f"{kind}, {rows:,} rows" for name, rows in files.items()}
    scores = {
        score: np.mean([mean(name, head, f"AUROC {score}") for name, head in heads.items()])
        for score in ("energy", "mutual information", "entropy")
    }
    assert max(scores, key=lambda score: scores[score]) == "mutual information"
    of_pairs = [fold["methods"][heads["-imagenet"]] for fold in stored["-imagenet"]]
    told = [[of[f"AUROC {score}"] for of in of_pairs] for score in ("energy", "std", "mutual information")]
    assert [f"{of[0]:.3f}" for of in told] == ["0.872", "0.941", "0.921"], "as the page of details says"
    assert all(
        std < energy and abs(information - energy) < 0.003
        for energy, std, information in list(zip(*told, strict=True))[1:]
    )


def test_the_third_configuration_mends_the_nlpd_and_stays_behind_knn_and_she(found):
    """The words below its table are those of the template; here is what they rest on."""
    ten, five = (found[dataset] for dataset in PROTOCOL[MORE_ROWS].only)
    over = lambda methods, other, name: report_second.minus(methods, MORE_ROWS, other, name)
    every = [(of, f"AUROC: {unknown}") for of in (ten, five) for unknown in report.unknowns(of)]
    second, first = ([over(of, other, name) for of, name in every] for other in (FROM_NETWORK, INFINITE_WIDTH))
    assert len(every) == 4 and all(one.mean > one.std for one in (*second, *first[:3]))
    assert abs(first[3].mean) < first[3].std
    for methods in (ten, five):
        nlpd, ece = (over(methods, "msp", name) for name in ("NLPD", "ECE"))
        assert nlpd.mean <= 0 and ece.mean > ece.std
    assert all(ahead(ten, peer, MORE_ROWS, unknown) for peer in ("knn", "she") for unknown in report.unknowns(ten))
    energy = [over_seeds(of[MORE_ROWS], name.replace(":", " by the energy:")).mean for of, name in every]
    information = [over_seeds(of[MORE_ROWS], name).mean for of, name in every]
    before = [over_seeds(of[FROM_NETWORK], name).mean for of, name in every]
    assert [a > b for a, b in zip(information, energy, strict=True)] == [True, True, True, False]
    assert [a > b + 0.001 for a, b in zip(energy, before, strict=True)] == [False, True, True, True]


def test_calibrated_the_third_configuration_has_the_networks_nlpd_and_ece(found):
    """Nor is either higher, but for the ECE on CLINC150, where no peer's AUROC is."""
    over = {
        dataset: [report_second.minus(found[dataset], CALIBRATED, "msp", name) for name in ("NLPD", "ECE")]
        for dataset in PROTOCOL[CALIBRATED].only
    }
    assert all(nlpd.mean < -nlpd.std for nlpd, _ in over.values())
    assert {dataset for dataset, (_, ece) in over.items() if ece.mean > ece.std} == {"clinc150"}
    assert all(ece.mean < 0 for dataset, (_, ece) in over.items() if dataset != "clinc150")
    assert report_second.ahead(found["clinc150"], CALIBRATED, "AUROC: out of scope") == 0
    for dataset in PROTOCOL[MORE_ROWS].only:  # the same heads, by a search that has been made faster since
        for unknown in report.unknowns(found[dataset]):
            one, other = (over_seeds(found[dataset][name], f"AUROC: {unknown}") for name in (CALIBRATED, MORE_ROWS))
            assert abs(one.mean - other.mean) < 0.001


def test_longer_training_is_where_others_are_ahead(found):
    better = {
        recipe: report.better(found[recipe], report_recipes.UNKNOWN.removeprefix("AUROC: ")) for recipe in RECIPES
    }
    assert {recipe for recipe, peers in better.items() if peers} == {recipe for recipe in RECIPES if "longer" in recipe}


def test_who_else_is_to_be_used_for_questions_and_tables(found, of_tables):
    assert not report.better(found["clinc150"], "out of scope")
    assert lowest(found["clinc150"], "NLPD", 4) == {"ensemble", "mc dropout", "finite head", "restored prior"}
    _, classes = of_tables
    best = {data: min(of, key=lambda method: report_tables.mean(of, method, "NLPD")) for data, of in classes.items()}
    assert best == {"diabetes": INFINITE_WIDTH, "adult": "catboost", "connect-4": "tabpfn", "covtype": "tabpfn"}


def test_what_the_page_says_of_single_tables_of_values(of_tables):
    values, _ = of_tables
    of = lambda data, name: {m: report_tables.mean(values[data], m, name) for m in values[data]}
    coverage, energy = of("naval", "coverage: gap"), of("energy", "coverage: gap")
    ours = coverage.pop(INFINITE_WIDTH)
    assert 0.7 < ours < 0.9 and energy[INFINITE_WIDTH] < 0.6 and np.median(list(energy.values())) < 0.6
    assert all(coverage[method] < 0.01 for method in ("ensemble", "mc dropout", "laplace"))
    assert 0.5 < coverage["finite network"] < 0.7
    assert min(coverage["gaussian process"], coverage["sparse gaussian process"]) > 0.95
    assert report_tables.higher(values, "finite network", "log-likelihood: standard") == (0, 9)
    for kind in ("gap", "tail"):  # about level with Laplace
        both = [[of(data, f"log-likelihood: {kind}")[m] for data in values] for m in ("finite network", "laplace")]
        assert 3 <= np.sum(np.greater(*both)) <= 6
    tails = [[of(data, "coverage: tail")[m] for data in values] for m in ("finite network", INFINITE_WIDTH)]
    assert np.mean(tails[0]) + 0.05 < np.mean(tails[1])
    ranked = [[row[0] for row in report_tables._over_datasets(values, kind).rows] for kind in KINDS]
    draws, labels = REGRESSORS[DRAWS].label, {kind: order[:2] for kind, order in zip(KINDS, ranked, strict=True)}
    assert labels["standard"][0] == labels["tail"][0] == draws and labels["gap"] == ["sparse Gaussian process", draws]
    held, wide = ([of("energy", "coverage: gap")[m], of("naval", "width: tail")[m]] for m in (INFINITE_WIDTH, DRAWS))
    assert wide[0] > held[0] and wide[1] > 1.2 * held[1]
    share = [np.mean([of(data, "coverage: gap")[m] for data in values]) for m in (DRAWS, INFINITE_WIDTH)]
    page = " ".join((ROOT / "docs" / "infinite_width.md").read_text(encoding="utf-8").split())
    assert "90 % intervals hold {:.0f} % instead of {:.0f} %".format(*(100 * value for value in share)) in page
    width, error = of("naval", "width: gap"), of("naval", "RMSE: gap")
    assert (
        round(width[INFINITE_WIDTH] / width["marginal"]) == 4 and max(error, key=lambda m: error[m]) == INFINITE_WIDTH
    )
    rmse, gap, tail = (of("wine", name) for name in ("RMSE: standard", "log-likelihood: gap", "log-likelihood: tail"))
    assert all(rmse[m] < rmse[INFINITE_WIDTH] and gap[m] > gap[INFINITE_WIDTH] for m in ("random forest", "ensemble"))
    assert tail["ensemble"] < tail[INFINITE_WIDTH] < tail["random forest"]
