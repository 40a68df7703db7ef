"""Renders the chart into a folder, one file a value set: for scanners, and to see what a change makes of it."""

import sys
from pathlib import Path

import yaml
from helm_python import Chart

HELM = Path(__file__).resolve().parents[1] / "deploy" / "helm"


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with Chart.load(HELM / "headrace") as chart:
        for values in sorted((HELM / "values").glob("*.yaml")):
            files = chart.render(yaml.safe_load(values.read_text()), name="headrace", namespace="serving")
            texts = [text for name, text in files.items() if not name.endswith("NOTES.txt")]
            documents = [document for text in texts for document in yaml.safe_load_all(text) if document]
            for document in documents:
                document["metadata"].setdefault("namespace", "serving")
            (folder / values.name).write_text(yaml.safe_dump_all(documents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
