"""What Jupyter and programs get of a ranking and of an estimate: the rows of the table, and its text as HTML."""

import json
import re
from html import escape
from html.parser import HTMLParser
from io import StringIO

import pytest
from msgspec import structs
from typer.main import get_command

from moeplan.by_hand import ByHand, as_options, layout_of, recompute_of, split_of
from moeplan.cli import app
from moeplan.closed import SIMULATED_TITLE, closed_title, short_note
from moeplan.estimator import estimate
from moeplan.layout import Colocated
from moeplan.planner import optimize
from moeplan.ranking import layout_lines, pruned_rows, ranking_notes, ranking_rows, ranking_table, reason
from moeplan.report import plan_facts, print_estimate, print_ranking
from moeplan.spec.shipped import load_calibration
from moeplan.spec.workload import Memory
from moeplan.tables import cell, html_lines, html_table


class Texts(HTMLParser):
    """The text of each cell and line, and the tags that are open when it ends."""

    def __init__(self, html):
        super().__init__()
        self.open, self.cells, self.lines = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag in ("td", "li"):
            (self.cells if tag == "td" else self.lines).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("td", "li"):
            (self.cells if self.open[-1] == "td" else self.lines)[-1] += data


@pytest.fixture(scope="module")
def ranking(make_case):
    return optimize(make_case(4), load_calibration("h800"))


@pytest.fixture(scope="module")
def nothing_fits(make_case):
    return optimize(make_case(4, memory=Memory(usable=1e-7)), load_calibration("h800"))


def test_a_data_frame_has_one_row_per_family_with_the_numbers_of_its_plan(ranking):
    frame = ranking.to_dataframe()
    assert list(frame.family) == [found.family for found in ranking.found]
    assert list(frame.step_s) == [found.best.predictions.step_s for found in ranking.found]
    assert list(frame.columns) == list(ranking_rows(ranking)[0])


def test_a_dictionary_is_plain(ranking):
    told = ranking.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert [row["fits"] for row in told["ranking"]] == [True] * len(ranking.found)


@pytest.mark.parametrize("name", ["ranking", "nothing_fits"])
def test_html_is_the_table_and_the_notes(name, request):
    ranking = request.getfixturevalue(name)
    seen = Texts(ranking._repr_html_())
    assert seen.open == []
    pruned = [cell(value, key) for row in pruned_rows(ranking) for key, value in row.items()]
    table = ranking_table(ranking) if layout_lines(ranking) else []
    assert seen.cells == [value for row in table for value in row.values()] + pruned
    assert seen.lines == [*layout_lines(ranking), *ranking_notes(ranking)]


def test_families_where_nothing_fits_say_by_how_much(nothing_fits):
    frame = nothing_fits.to_dataframe()
    assert not frame.fits.any()
    assert (frame.short_gib > 0).all()
    assert layout_lines(nothing_fits) == []


def test_where_nothing_fits_one_line_says_what_was_tried_and_no_table_is_empty(nothing_fits):
    out = StringIO()
    print_ranking(nothing_fits, out)
    told = out.getvalue()
    assert "as options of" not in told
    first, near = ranking_notes(nothing_fits)[0], min(f.mend.miss.short_bytes for f in nothing_fits.found if f.mend)
    tried = sum(pruned.layouts for found in nothing_fits.found for pruned in found.pruned)
    assert first.startswith(f"nothing fits: {tried:,} layouts of colocated, disaggregated, piper on 4 GPUs")
    assert first.endswith(f"{near / 2**30:.3g} GiB short per GPU")
    assert told.startswith(first)
    assert json.loads(json.dumps(nothing_fits.to_dict()))["notes"][0] == first


def test_nothing_tried_is_no_table_either(make_case):
    ranking = optimize(make_case(4), load_calibration("h800"), families=("piper", "colocated"), fixed={"tp": 2})
    wanted = ranking._replace(found=tuple(f for f in ranking.found if f.best is None))
    out = StringIO()
    print_ranking(wanted, out)
    assert "─" not in out.getvalue()
    assert "piper: no layout has the degrees that were set: it has no tp" in out.getvalue()


def test_sequences_that_do_not_divide_are_told_of_each_family(make_case):
    ranking = optimize(make_case(4, global_batch=7), load_calibration("h800"), fixed={"dp": 2, "micro_batch": 2})
    for found in ranking.found:
        short = f"{found.family}: the last micro-batch is short: 7 sequences are not a multiple of"
        ragged = found.best is not None and 7 % (found.best.batch.micro_batch * found.best.batch.shards) != 0
        assert any(note.startswith(short) for note in ranking_notes(ranking)) == ragged


def test_models_without_experts_have_no_degrees_of_experts(make_case):
    case = make_case(4, model="llama-2-7b", memory=Memory(usable=1.0))
    calibration, layout = load_calibration("h800"), layout_of(case, ByHand(tp=4))
    told = estimate(case, calibration, layout)
    assert "expert_data_parallel" not in told.to_dict()
    ranking = optimize(case, calibration, families="colocated", fixed={"tp": 4})
    for text in (str(told.to_dict()), str(ranking.to_dict()), as_options(told.plan), str(plan_facts(told.plan))):
        assert "tp 4" in text
        assert "etp" not in text
    assert " etp 1" in str(optimize(make_case(4), calibration, fixed={"tp": 4}).to_dict())


def test_results_in_words_are_one_line(make_case):
    case = make_case(8)
    told = estimate(case, load_calibration("h800"), Colocated(pp=2, dp=4))
    step_s = f"{told.plan.predictions.step_s:.4g} s"
    for one in (told, told.plan):
        assert str(one) == repr(one)
        assert {"tiny-moe", "h800-16x8", "colocated"} <= set(re.findall(r"[\w-]+", str(one)))
        assert step_s in str(one)
        assert len(str(one)) < 200
    assert str(told).endswith(", fits)")
    assert f"{told.closed_form.step_s:.4g} s" in str(told.closed_form)
    full = estimate(make_case(8, memory=Memory(usable=1e-6)), load_calibration("h800"), Colocated(dp=8))
    assert str(full).endswith(f"{short_note(full.short_bytes)})")


def test_each_of_two_intervals_says_whose_it_is(make_case):
    told, out = estimate(make_case(8), load_calibration("h800"), Colocated(dp=8)), StringIO()
    print_estimate(told, out)
    seen = " ".join(out.getvalue().split())
    html = told._repr_html_()
    for title in (SIMULATED_TITLE, closed_title(told.closed_form)):
        assert title in seen
        assert escape(title) in html


def test_an_estimate_shows_every_position_and_whether_it_fits(make_case):
    case = make_case(8, memory=Memory(usable=1e-6))
    told = estimate(case, load_calibration("h800"), Colocated(pp=2, dp=4))
    seen = Texts(told._repr_html_())
    assert seen.open == []
    for number, stage in enumerate(told.stages):
        assert f"{stage.name}{' *' if number == told.worst else ''}" in seen.cells
    assert len(seen.lines) == 1
    assert seen.lines[0].startswith("does not fit")


def test_names_that_users_gave_are_escaped(make_case):
    case = make_case(2)
    case = structs.replace(case, model=structs.replace(case.model, name="<script>x</script> & co"))
    html = estimate(case, load_calibration("h800"), Colocated(dp=2))._repr_html_()
    assert "<script>" not in html
    assert "<script>x</script> & co" in Texts(html).cells


def test_all_text_of_a_table_is_escaped():
    html = html_table([{"<a>": "<b>", "n": 0.5}, {"n": 12_345}], title="<c>") + html_lines(["<d>", 'e "f"'])
    assert not {"<a>", "<b>", "<c>", "<d>"} & set(html.replace("><", "> <").split())
    assert Texts(html).cells == ["<b>", "0.5", "", "12,345"]
    assert Texts(html).lines == ["<d>", 'e "f"']


def test_a_ranking_in_words_is_one_line(ranking):
    assert len(repr(ranking)) < 200
    assert "colocated" in repr(ranking)


def test_the_layouts_are_told_as_options_that_give_the_same_plan(ranking):
    """Every family's line, read as the command line reads it, is estimated at the ranking's own step."""
    for row, found in zip(ranking_rows(ranking), ranking.found, strict=True):
        command = get_command(app)
        words = ["estimate", "--model", "m", "--cluster", "c", "--seq-len", "1", "--global-batch", "1"]
        context = command.commands["estimate"].make_context("estimate", [*words[1:], *row["options"].split()])
        given = context.params
        degrees = {name: given[name] or None for name in ByHand._fields if name in given}
        degrees["split"] = split_of(given["pp_split"]) if given["pp_split"] else None
        layout = layout_of(ranking.case, ByHand(**degrees), given["family"])
        told = estimate(
            ranking.case,
            load_calibration("h800"),
            layout,
            schedule=given["schedule"],
            recompute=recompute_of(given["recompute"]),
        )
        assert told.plan.predictions.step_s == found.best.predictions.step_s
        assert told.plan.layout == found.best.layout


def test_why_compares_with_another_layout(make_case):
    ranking = optimize(make_case(4, global_batch=64), load_calibration("h800"))
    told = reason(ranking)
    best = ranking.best.predictions.step_s
    others = [f.best.predictions.step_s for f in ranking.found if f.best and f.best.predictions.step_s != best]
    assert not others or f"{min(others):.4g} s" in told


def test_no_lines_are_no_list():
    assert html_lines([]) == ""
