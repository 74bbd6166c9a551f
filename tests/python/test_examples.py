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
# Each script that is named describes its job in a folder of its name, in one process: most of the time is torch's.
DESCRIBE = """
import os, runpy, sys
folder, data, *scripts = sys.argv[1:]
for script in scripts:
    sys.path[0] = os.path.dirname(script)
    sys.argv = [script, data]
    os.environ["KELP_DESCRIBE"] = os.path.join(folder, os.path.basename(script))
    os.mkdir(os.environ["KELP_DESCRIBE"])
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert not end.code, end
"""


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
        absent = [name for name in wanted if not (DATA / folders[name]).is_dir()]
        scripts = {name: str(EXAMPLES / f"{name}_kelp.py") for name in wanted if name not in absent}
        with tempfile.TemporaryDirectory() as folder:
            arguments = [folder, str(DATA), *scripts.values()]
            environment = {**os.environ, "KELP_DESCRIBE": folder}
            subprocess.run([sys.executable, "-c", DESCRIBE, *arguments], check=True, env=environment)
            for name, script in scripts.items():
                with self.subTest(name):
                    text = pathlib.Path(folder, os.path.basename(script), "job.yaml").read_text()
                    self.assertLessEqual(set(wanted[name]), {line.strip() for line in text.splitlines()})
        if absent:
            self.skipTest(f"there is no {folders[absent[0]]} in {DATA}")


if __name__ == "__main__":
    unittest.main()
