"""Another Python, another clone, a notebook's kernel of elsewhere: said with what to do."""

import json
from pathlib import Path

from flows.doctor import check_environment, check_kernels


def kernel(folder: Path, name: str, program: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "kernel.json").write_text(json.dumps({"argv": [program, "-m", "x"]}))


def test_the_activated_environment_is_the_one_that_runs(tmp_path):
    (right,) = check_environment({"VIRTUAL_ENV": str(tmp_path)}, tmp_path, tmp_path, tmp_path)
    assert right.right
    (right,) = check_environment({}, tmp_path, tmp_path, tmp_path)
    assert right.right
    other = tmp_path / "other"
    (wrong,) = check_environment({"VIRTUAL_ENV": str(other)}, tmp_path, tmp_path, tmp_path)
    assert not wrong.right
    assert str(other) in wrong.text
    assert str(other / "bin" / "mindcycle") in wrong.remedy


def test_the_code_of_another_clone_is_noticed(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name / "flows").mkdir(parents=True)
        (tmp_path / name / "flows" / "lifecycle.py").write_text("")
    here, there = tmp_path / "here", tmp_path / "there"
    (wrong,) = check_environment({}, tmp_path, there, here)
    assert f"the code that runs is in {there}" in wrong.text
    assert f"--editable {here}" in wrong.remedy
    assert check_environment({}, tmp_path, here, here)[0].right


def test_a_kernel_of_another_python_is_noticed_unless_there_is_one_of_this(tmp_path):
    prefix, folder = tmp_path / "venv", tmp_path / "kernels"
    assert check_kernels([folder], prefix)[0].right  # nobody uses notebooks here
    kernel(folder, "python3", "/usr/bin/no-such-python")
    (wrong,) = check_kernels([folder], prefix)
    assert not wrong.right
    assert "python3 starts /usr/bin/no-such-python, which is gone" in wrong.text
    assert f"{prefix}/bin/python -m ipykernel install --user --name mindcycle" in wrong.remedy
    kernel(folder, "mindcycle", f"{prefix}/bin/python")
    assert check_kernels([folder], prefix)[0].right
    (folder / "broken").mkdir()
    (folder / "broken" / "kernel.json").write_text("{")
    assert check_kernels([folder], prefix)[0].right
