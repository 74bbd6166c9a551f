"""kelp.torch._bits: what makes two gradients the same, and what tells that they cannot be."""

import os
import random
import subprocess
import sys
import unittest

import numpy
import torch

from kelp.torch import _bits


def in_process(code, **environment):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import torch\nfrom kelp.torch import _bits\n" + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.strip(), result.stderr


class Prepare(unittest.TestCase):
    def test_settings(self):
        """Threads as the job says, and algorithms that give the same bits each time."""
        out, error = in_process(
            "_bits.prepare(2)\n"
            "print(torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())\n"
            "print(torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)\n"
            "print(_bits.compute_kind())"
        )
        self.assertEqual(out.split("\n")[:2], ["2 True", "True False"], error)
        self.assertIn("threads 2", out)

    def test_threads(self):
        with self.assertRaisesRegex(ValueError, "0 threads; at least 1"):
            _bits.prepare(0)


class Seeds(unittest.TestCase):
    def draw(self):
        return torch.rand(4).tolist(), numpy.random.rand(4).tolist(), [random.random() for _ in range(4)]

    def test_three_generators(self):
        """Each of them is set by the seed, and nothing before it matters."""
        _bits.seed_lane(_bits.mix(1, 1))
        first = self.draw()
        _bits.seed_lane(_bits.mix(1, 2))
        other = self.draw()
        _bits.seed_lane(_bits.mix(1, 1))
        again = self.draw()
        self.assertEqual(first, again)
        for mine, yours in zip(first, other):
            self.assertNotEqual(mine, yours)

    def test_high_half(self):
        """No half of the 64 bits is lost."""
        _bits.seed_lane(5)
        low = self.draw()
        _bits.seed_lane((5 << 32) + 5)
        self.assertNotEqual(low[1:], self.draw()[1:])

    def test_apart(self):
        """torch and numpy do not draw the same numbers, which they do with the same seed."""
        _bits.seed_lane((77 << 32) + 78)
        mine = torch.randint(0, 2**16, (8,)).tolist(), numpy.random.randint(0, 2**16, 8).tolist()
        self.assertNotEqual(mine[0], mine[1])

    def test_mix(self):
        """Numbers of one seed, and seeds of one number, give different ones; the first of SplitMix64's own."""
        numbers = {_bits.mix(seed, number) for seed in range(100) for number in range(100)}
        self.assertEqual(len(numbers), 10000)
        self.assertTrue(all(0 <= number < 2**64 for number in numbers))
        self.assertEqual([_bits.mix(0, number) for number in range(2)], [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4])


class ComputeKind(unittest.TestCase):
    def test_printable(self):
        kind = _bits.compute_kind()
        self.assertLessEqual(len(kind), 127)
        self.assertRegex(kind, r"^[ -~]+$")
        self.assertIn(f"torch {torch.__version__}", kind)

    def test_tells_apart(self):
        """What changes bits changes the name: the code that ATen, BLAS and oneDNN choose."""
        code = "_bits.prepare(1)\nprint(_bits.compute_kind())"
        usual, error = in_process(code)
        self.assertIn("threads 1", usual, error)
        isa = {"DNNL_MAX_CPU_ISA": "SSE41", "ONEDNN_MAX_CPU_ISA": "SSE41"}
        other, error = in_process(code, ATEN_CPU_CAPABILITY="default", OPENBLAS_CORETYPE="Nehalem", **isa)
        for mine, yours in zip(usual.split(", "), other.split(", ")):
            chosen = mine.startswith(("aten", "openblas", "onednn"))
            self.assertEqual(mine != yours, chosen, error)

    def test_long_names(self):
        """A name that is too long keeps what tells it apart, as a hash."""
        version = torch.__version__
        try:
            torch.__version__ = "1" * 200
            first = _bits.compute_kind()
            torch.__version__ = "1" * 199 + "2"
            second = _bits.compute_kind()
        finally:
            torch.__version__ = version
        self.assertEqual((len(first), len(second)), (127, 127))
        self.assertNotEqual(first, second)


if __name__ == "__main__":
    unittest.main()
