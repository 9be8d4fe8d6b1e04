"""The lifecycle from Python, and from a real Jupyter kernel where one is installed."""

import pytest

from artifacts.errors import BadInput
from flows.notebook import run
from tests.command import ROOT, environment


def test_from_python(tmp_path, capsys):
    store = tmp_path / "store"
    outcomes = run(ROOT / "configs" / "tiny.yaml", to="corpus", store=store)
    assert list(outcomes) == ["corpus"]
    assert outcomes["corpus"].path.is_relative_to(store)
    assert "corpus " in capsys.readouterr().out
    again = run(ROOT / "configs" / "tiny.yaml", to="corpus", store=store)
    assert again["corpus"].skipped
    with pytest.raises(BadInput, match=r"pretrain\.steps: is 0"):
        run(ROOT / "configs" / "tiny.yaml", overrides=["pretrain.steps=0"], store=store)


def test_in_a_kernel_one_output_is_redrawn(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel to run this")
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel to run this")
    pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel to run this")
    for name, value in environment(JUPYTER_DATA_DIR=str(tmp_path / "jupyter")).items():
        monkeypatch.setenv(name, value)
    cell = (
        "from flows.notebook import run\n"
        f"outcomes = run({str(ROOT / 'configs' / 'tiny.yaml')!r}, to='corpus', "
        f"store={str(tmp_path / 'store')!r})\n"
        "import sys\n"
        "print(sorted({'prefect', 'mindspore'} & set(sys.modules)))"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    shown, printed = notebook.cells[0].outputs
    assert shown["output_type"] == "display_data"
    assert shown["data"]["text/plain"].startswith("corpus  ")
    assert "store/corpus/" in shown["data"]["text/plain"]
    assert printed["text"] == "[]\n"
