"""Effect. Writes the Kustomize base and overlays of `kuberay/` from the run.yaml in each of their folders.

The alert rules become an object of the Prometheus operator's, too.

python tools/kuberay.py --write kuberay
"""

import argparse
from pathlib import Path

import yaml

from elastic import __version__
from elastic.config import load
from elastic.kube.kustomize import base, overlay
from elastic.kube.manifests import render, text
from elastic.kube.pods import Object

SETTINGS = "run.yaml"
RULES = "elastic-rules.yaml"
KEPT = {SETTINGS, RULES, "pod-monitor.yaml"}
_HEADER = f"# Written by `python tools/kuberay.py --write kuberay` from {RULES}; do not edit by hand.\n"


def objects_of(folder: Path) -> dict[str, Object]:
    """What the settings of a base or an overlay say."""
    config, _ = load(folder / SETTINGS, environment={})
    return render(config, __version__)


def folders(root: Path) -> dict[Path, dict[str, str]]:
    """The files of base and overlays, by folder and name."""
    ground = objects_of(root / "base")
    written = {root / "base": base(ground)}
    for settings in sorted((root / "overlays").glob(f"*/{SETTINGS}")):
        written[settings.parent] = overlay(objects_of(settings.parent), ground, "../../base")
    return written | {root / "monitoring": {"prometheus-rule.yaml": _HEADER + text(alerts(root / "monitoring"))}}


def alerts(folder: Path) -> Object:
    """The rules as the Prometheus operator wants them."""
    head = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "elastic"}}
    return {**head, "spec": yaml.safe_load((folder / RULES).read_text())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FOLDER", required=True)
    for folder, files in folders(parser.parse_args().write).items():
        for old in folder.glob("*.yaml"):
            if old.name not in KEPT:
                old.unlink()
        for name, content in files.items():
            (folder / name).write_text(content)


if __name__ == "__main__":
    main()
