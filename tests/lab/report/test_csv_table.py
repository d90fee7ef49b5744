import csv

from stationary.lab.report.content import Measured, Table
from stationary.lab.report.csv_table import render_table


def test_measured_numbers_have_columns_for_what_is_known_of_them():
    paper = Measured(0.5, 0.1)
    table = Table(
        "Some numbers",
        ("name", "NLPD", "plain", "count"),
        (("a, b", Measured(1 / 3, 0.25, paper), 2.0, 3), ("c", Measured(0.1), None, 4)),
    )
    head, *rows = csv.reader(render_table(table).splitlines())
    assert head == ["name", "NLPD", "NLPD std", "NLPD paper", "NLPD paper std", "plain", "count"]
    assert rows == [["a, b", "0.333333", "0.25", "0.5", "0.1", "2", "3"], ["c", "0.1", "", "", "", "", "4"]]


def test_a_table_without_rows_has_its_headings():
    assert render_table(Table("Empty", ("a", "b"), ())) == "a,b\n"
