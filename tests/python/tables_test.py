#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers as pandas.DataFrame and as pictures.  FSDP_TEST_DATA is tests/data; FSDP_CKPT names the program."""
import os
import unittest

import matplotlib
import numpy

matplotlib.use("Agg")
import fsdp_ckpt
import fsdp_ckpt.plot

FOLDER = os.path.join(os.environ["FSDP_TEST_DATA"], "golden/2.15.0/fsdp2/ckpt")
SMALL = os.path.join(os.environ["FSDP_TEST_DATA"], "golden/2.11.0/minimal/ckpt")


class TablesTest(unittest.TestCase):
    def test_frames(self):
        found = fsdp_ckpt.inspect(FOLDER)
        frame = found.to_pandas()
        self.assertEqual(list(frame.key), [one.key for one in found.tensors])
        self.assertEqual(int(frame.bytes.sum()), found.totals.bytes)
        self.assertEqual(list(found.to_pandas("files").name), [one.name for one in found.files])
        stats = fsdp_ckpt.stats(FOLDER)
        self.assertEqual(list(stats.to_pandas().zeros), [one.zeros for one in stats.tensors])
        differing = fsdp_ckpt.diff(FOLDER, SMALL, check=False)
        self.assertEqual(len(differing.to_pandas()), len(differing.differences))
        self.assertEqual(len(fsdp_ckpt.verify(FOLDER).to_pandas()), 0)
        with self.assertRaisesRegex(ValueError, "tensors"):
            found.to_pandas("rows")

    def test_pictures(self):
        ax = fsdp_ckpt.plot.bytes_by_module(FOLDER, depth=3)
        sizes = [patch.get_width() for patch in ax.patches]
        self.assertEqual(sum(sizes), fsdp_ckpt.inspect(FOLDER).totals.bytes)
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        elements = numpy.array([0.0, 1.0, 1.0, numpy.nan, numpy.inf])
        self.assertEqual(sum(patch.get_height() for patch in fsdp_ckpt.plot.histogram(elements, bins=2).patches), 3)
        ax = fsdp_ckpt.plot.norms([FOLDER, FOLDER], depth=2)
        lines = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}
        model = [one for one in fsdp_ckpt.stats(FOLDER, keys="app.model.**").tensors]
        norm = sum((one.rms or 0) ** 2 * numpy.prod(one.shape, dtype=float) for one in model) ** 0.5
        self.assertAlmostEqual(lines["app.model"][0], norm, places=9)
        self.assertEqual(lines["app.model"][0], lines["app.model"][1])
        compared = fsdp_ckpt.diff(FOLDER, FOLDER, by="layer")
        self.assertEqual(len(fsdp_ckpt.plot.changes(compared).patches), sum(one.relative is not None for one in compared.groups))
        with self.assertRaisesRegex(ValueError, "by="):
            fsdp_ckpt.plot.changes(fsdp_ckpt.diff(FOLDER, FOLDER))
        with self.assertRaisesRegex(ValueError, "two paths"):
            fsdp_ckpt.plot.changes(FOLDER)


if __name__ == "__main__":
    unittest.main(verbosity=2)
