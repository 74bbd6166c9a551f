"""examples/pytorch and what docs/PYTHON.md shows of it."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/pytorch"
DATA = pathlib.Path(os.environ.get("KELP_DATA") or ROOT.parent / "shared/data")


class Examples(unittest.TestCase):
    def test_documented_difference(self):
        """Each line of the page's difference stands in the script that it is of."""
        block = re.search(r"```diff\n(.*?)```", (ROOT / "docs/PYTHON.md").read_text(), re.DOTALL).group(1)
        plain, kelp = ((EXAMPLES / name).read_text().splitlines() for name in ("taxi_fare.py", "taxi_fare_kelp.py"))
        for line in filter(None, block.splitlines()):
            text = line[1:]
            with self.subTest(line):
                self.assertEqual(text in plain, line[0] in " -")
                self.assertEqual(text in kelp, line[0] in " +")

    def test_pairs(self):
        """A pair has the same module, data and optimizer: it differs in imports, the loop and the first comment."""
        pairs = sorted(EXAMPLES.glob("*_kelp.py"))
        self.assertEqual(len(pairs), 4)
        for path in pairs:
            plain = (EXAMPLES / path.name.replace("_kelp", "")).read_text()
            same = plain[plain.index("\nclass ") : plain.index("\nfor epoch in")]
            with self.subTest(path.name):
                self.assertIn(same, path.read_text())

    def test_describe(self):
        """The scripts describe their jobs: optimizer, schedule and sizes as the plain ones have them."""
        wanted = {
            "taxi_fare": ["optimizer: adam", "lr: 0.01", "epochs: 3", "batch_size: 64", "lanes: 2"],
            "dlinear": ["schedule: multistep", "milestones: [2, 3, 4, 5, 6, 7, 8, 9]", "gamma: 0.5", "epochs: 10"],
            "mnist_convnet": ["optimizer: adadelta", "schedule: step", "gamma: 0.7", "batch_size: 128"],
            "resnet18": ["schedule: cosine", "schedule_total: 157", "schedule_unit: step", "lr: 0.001"],
        }
        folders = {"taxi_fare": "nyc-taxi", "dlinear": "ett", "mnist_convnet": "mnist", "resnet18": "fashion-mnist"}
        for name, lines in wanted.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                if not (DATA / folders[name]).is_dir():
                    self.skipTest(f"there is no {folders[name]} in {DATA}")
                script = str(EXAMPLES / f"{name}_kelp.py")
                environment = {**os.environ, "KELP_DESCRIBE": folder}
                subprocess.run([sys.executable, script, str(DATA)], check=True, env=environment)
                job = [line.strip() for line in pathlib.Path(folder, "job.yaml").read_text().splitlines()]
                for line in lines:
                    self.assertIn(line, job)


if __name__ == "__main__":
    unittest.main()
