"""The lifecycle in a real Jupyter kernel."""

import nbclient
import nbformat

from tests.command import ROOT, environment


def test_in_a_kernel_one_output_is_redrawn(tmp_path, monkeypatch):
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
