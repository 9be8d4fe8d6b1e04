"""Reading MMLU's and C-Eval's published files: every cell as written, every flaw named."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.errors import BadInput
from stages.evaluate.questions import read_ceval, read_mmlu
from tests.evaluation import row, rows, write_ceval, write_mmlu

cells = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1
).filter(str.strip)
tables = st.lists(st.tuples(*[cells] * 5, st.sampled_from("ABCD")), min_size=1, max_size=5)


def problems_of(read: object, path: Path) -> list[str]:
    with pytest.raises(BadInput) as caught:
        read(path)  # type: ignore[operator]
    return [problem.replace(f"{path}:", "") for problem in caught.value.problems]


@given(table=tables, ending=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
def test_every_cell_comes_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, table: list, ending: str, bom: bool
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO()
    csv.writer(text, lineterminator=ending).writerows(table)
    path = folder / "x_test.csv"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.getvalue().encode())
    read = read_mmlu(path)
    assert [(q.text, *q.options, "ABCD"[q.answer]) for q in read] == table
    assert [q.id for q in read] == [str(i) for i in range(len(table))]


def test_quotes_commas_and_line_breaks_inside_cells(tmp_path: Path) -> None:
    path = tmp_path / "x_test.csv"
    path.write_text('"a ""quoted"" word,\nand a line",1,"2,5",3,4,D\n\nplain,1,2,3,4,A\n')
    first, second = read_mmlu(path)
    assert first.text == 'a "quoted" word,\nand a line'
    assert first.options[1] == "2,5"
    assert (second.text, second.answer) == ("plain", 0)


def test_each_broken_row_is_named_by_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "x_test.csv"
    path.write_text('"two\nlines",1,2,3,4,A\nshort,1,2,3,A\nq,1,2,3,4,E\n ,1,2,3,4,A\nq,1,,3,4,A\n')
    assert problems_of(read_mmlu, path) == [
        "3: has 5 columns; 6 would be right: question, A, B, C, D, answer",
        "4: the answer is 'E'; A, B, C or D would be right",
        "5: the question is empty",
        "6: option B is empty",
    ]


def test_an_open_quote_is_named_where_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "x_test.csv"
    path.write_text('q,1,2,3,4,A\n"q,1,2,3,4,A\nq,1,2,3,4,A\n')
    (problem,) = problems_of(read_mmlu, path)
    assert problem.startswith("2: is broken CSV")
    assert "a quote is opened and not closed" in problem


def test_a_stray_quote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x_test.csv"
    path.write_text('"q" and more,1,2,3,4,A\n')
    (problem,) = problems_of(read_mmlu, path)
    assert problem.startswith("1: is broken CSV")


def test_what_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x_test.csv"
    path.write_bytes(b"q,1,2,3,4,A\n" + "问,1,2,3,4,A\n".encode("gb18030"))
    assert problems_of(read_mmlu, path) == ["2: is not UTF-8 (byte 12)"]


def test_empty_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "x_test.csv"
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_mmlu(path)
    path.write_text("\n\n")
    with pytest.raises(BadInput, match="holds no question"):
        read_mmlu(path)


def test_a_file_of_another_kind_does_not_fill_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "x_test.csv"
    path.write_text("one,two\n" * 1000)
    found = problems_of(read_mmlu, path)
    assert len(found) == 21
    assert "980 problems more" in found[-1]


def test_ceval_keeps_ids_and_explanations(tmp_path: Path) -> None:
    write_ceval(tmp_path, "dev", {"law": rows("CA")})
    write_ceval(tmp_path, "val", {"law": rows("BD")})
    assert [(q.id, q.answer, q.explanation) for q in read_ceval(tmp_path / "dev/law_dev.csv")] == [
        ("0", 2, "because"),
        ("1", 0, "because"),
    ]
    assert [q.answer for q in read_ceval(tmp_path / "val/law_val.csv")] == [1, 3]


def test_ceval_without_answers_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "law_test.csv"
    path.write_text("id,question,A,B,C,D\n0,q,1,2,3,4\n")
    with pytest.raises(BadInput, match="has no answers"):
        read_ceval(path)


def test_ceval_flaws(tmp_path: Path) -> None:
    path = tmp_path / "law_val.csv"
    path.write_text("id,question,A,B,C,D,answer\n0,q,1,2,3,4,A\n0,q,1,2,3,4,A\n1,q,1,2,3,4\n")
    assert problems_of(read_ceval, path) == [
        "3: id is '0', which an earlier row has",
        "4: has 6 columns; the header has 7",
    ]
    write_mmlu(tmp_path, "val", {"law": [row("q", "A")]})
    (problem,) = problems_of(read_ceval, tmp_path / "val/law_val.csv")
    assert "header is 'q,one,two,three,four,A'" in problem
