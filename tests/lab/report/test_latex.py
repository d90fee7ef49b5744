"""The LaTeX tables: pdflatex takes them, nothing stands out of the page, and no cell is lost."""

import math
import re
import subprocess

import pytest

from stationary.lab.report.content import Measured, Section, Table
from stationary.lab.report.latex import LATEX, render_latex

DOCUMENT = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n\\input{tables}\n\\end{document}\n"
NASTY = """<b> & 100 % $x_1$ | #2 {a} ~ ^ \\ `b` *c* ± é "q" 'p' [1] -- ν κ(x, x') ≤ 2² → ∞ µs Δ/std"""
METRICS = ("ACC known", "NLPD known mean-probability", "AUROC similar mutual information", "FPR95", "clipped unknown")


def compiled(sections, folder):
    """What pdflatex says of a document with these tables."""
    (folder / "tables.tex").write_text(render_latex(sections), encoding="utf-8")
    (folder / "document.tex").write_text(DOCUMENT, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, encoding="utf-8", errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


def wide():
    """As many columns as the widest table of ours has, and a row for each kind of cell."""
    published = Measured(0.512, 0.013)
    cells = [Measured(0.5312, 0.0127, published), Measured(0.61, 0.02), Measured(math.inf), None, 12345, -0.25, "text"]
    columns = ("method", "prior", *METRICS * 3)
    rows = [("infinite width", "Matérn-5/2", *[cell] * 15) for cell in cells]
    return Table("A wide table: " + NASTY, columns, tuple(rows))


@pytest.mark.latex
def test_pdflatex_takes_what_is_nasty_and_what_is_wide(tmp_path):
    plain = Table(NASTY, (NASTY, "ν", "κ(x, 0)"), ((NASTY[:40], 768, 0.25), ("é" + "".join(map(chr, LATEX)), 1, None)))
    said = compiled([Section(NASTY, "", "", tables=(plain, wide()))], tmp_path)
    assert "Float too large" not in said and "Missing character" not in said
    alone = compiled([Section("wide", "", "", tables=(wide(),))], tmp_path)
    assert "Overfull" not in alone, "a table stands out of the page"


def test_a_wide_table_is_continued_and_loses_no_cell():
    text = render_latex([Section("wide", "", "", tables=(wide(),))])
    tables = text.split("\\begin{table}")[1:]
    assert len(tables) > 3 and sum("(continued)" in table for table in tables) == len(tables) - 1
    for table in tables:
        rows = [line for line in table.split("\\midrule")[1].splitlines() if line.endswith("\\\\")]
        assert len(rows) == 7 and all(row.strip().startswith("infinite width & Mat") for row in rows)
    columns = sum(len(re.findall(r"(?<!\\)&", table.split("\\midrule")[1].splitlines()[1])) - 1 for table in tables)
    assert columns == 3 * 15, "ours, the paper's and their difference"


def test_a_narrow_table_is_one():
    table = Table("Narrow", ("a", "b"), (("c", 0.25),))
    assert render_latex([Section("t", "", "", tables=(table,))]).count("\\begin{table}") == 1
