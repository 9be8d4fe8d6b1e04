"""The templates for other systems, as far as they can be checked without those systems."""

import subprocess

import yaml

from tests.command import ROOT


def test_deploy_templates_are_what_their_systems_read():
    deployment = yaml.safe_load((ROOT / "deploy" / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]
    assert (
        deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    )
    mounts = {m["name"] for c in pod["spec"]["containers"] for m in c["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}
    script = ROOT / "deploy" / "slurm.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    copied = (ROOT / "deploy" / "Dockerfile").read_text()
    assert (ROOT / "requirements.lock").is_file()
    assert "requirements.lock" in copied
