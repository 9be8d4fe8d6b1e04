"""`mindcycle doctor` on the machine that the tests run on, collective launch included."""

import re

from tests.command import mindcycle


def test_this_machine_is_fit(tmp_path):
    ran = mindcycle("doctor", "--store", tmp_path / "store")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    *lines, last = ran.stdout.splitlines()
    said = {line.split()[1]: line for line in lines}
    assert list(said) == [
        *("python", "venv", "jupyter", "packages", "disk", "memory", "mindspore", "collective")
    ]
    assert "device CPU" in said["mindspore"]
    assert re.search(r" rank [01] has the sum, rank [01] has the sum  \(", said["collective"])
    assert "rank 0" in said["collective"]
    assert "rank 1" in said["collective"]
    assert last == "This machine is fit."
    assert not (tmp_path / "store").exists()


def test_a_clashing_package_ends_with_exit_1_and_a_remedy(tmp_path):
    # A numpy 2 that only says so: enough for the versions, and MindSpore's own import is shown too.
    package = tmp_path / "numpy"
    package.mkdir()
    (package / "__init__.py").write_text(
        "raise ImportError('numpy.core.multiarray failed to import')"
    )
    info = tmp_path / "numpy-2.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.1.0\n")
    ran = mindcycle("doctor", first_on_path=str(tmp_path), cwd=tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "WRONG  packages   numpy 2.1.0, needed is ==1.26.4" in ran.stdout
    assert "WRONG  mindspore" in ran.stdout
    assert "pip install numpy==1.26.4" in ran.stdout
