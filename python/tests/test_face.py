"""What the package offers without PyTorch: graphs in text form over any array, the op table, what the library found."""
import unittest

import numpy as np

import reprise

TEXT = open(__file__.replace("test_face.py", "product.ir")).read()


class Plain:
    def __init__(self, a):
        self.a = a

    def __dlpack__(self, **options):
        return self.a.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.a.__dlpack_device__()


class Face(unittest.TestCase):
    def test_a_graph_over_numpy(self):
        f = reprise.compile_ir(TEXT)
        for _ in range(3):
            a, b = np.random.rand(2, 3).astype(np.float32), np.random.rand(3, 4).astype(np.float32)
            got = f(a, b)
            self.assertIsInstance(got, np.ndarray)
            np.testing.assert_allclose(got, np.maximum(a @ b, 0.5), rtol=1e-5)
        self.assertTrue(f.explain())

    def test_arrays_without_a_framework(self):
        y = reprise.compile_ir(TEXT)(Plain(np.ones((2, 3), np.float32)), Plain(np.ones((3, 4), np.float32)))
        self.assertIsInstance(y, reprise.Array)
        self.assertEqual((y.shape, y.dtype), ((2, 4), "float32"))
        np.testing.assert_array_equal(np.from_dlpack(y), np.full((2, 4), 3, np.float32))
        self.assertIn("3", repr(y))

    def test_versions_of_dlpack(self):
        y = reprise.compile_ir(TEXT)(Plain(np.ones((2, 3), np.float32)), Plain(np.ones((3, 4), np.float32)))
        self.assertEqual(y.__dlpack_device__(), (1, 0))
        for options, name in (({}, "dltensor"), ({"stream": None, "max_version": None}, "dltensor"), ({"max_version": (0, 8)}, "dltensor"),
                              ({"max_version": (1, 0), "dl_device": (1, 0), "copy": False}, "dltensor_versioned"), ({"max_version": (2, 0)}, "dltensor_versioned")):
            with self.subTest(options):
                self.assertIn(f'"{name}"', repr(y.__dlpack__(**options)))

        class Old:  # an array of before the array API of 2023
            def __dlpack__(self, stream=None):
                return y.__dlpack__()

            def __dlpack_device__(self):
                return (1, 0)
        np.testing.assert_array_equal(np.from_dlpack(Old()), np.full((2, 4), 3, np.float32))
        for options in ({"copy": True}, {"dl_device": (2, 0)}):
            with self.subTest(options), self.assertRaises(BufferError):
                y.__dlpack__(**options)

    def test_a_graph_over_jax(self):
        try:
            import jax.numpy as jnp
        except ImportError:
            self.skipTest("jax is not here")
        f = reprise.compile_ir(TEXT)
        for k in range(1, 4):
            y = f(jnp.ones((2, 3), jnp.float32), k * jnp.ones((3, 4), jnp.float32))
            self.assertIsInstance(y, jnp.ndarray)
            np.testing.assert_array_equal(y, np.full((2, 4), 3 * k, np.float32))

    def test_errors(self):
        with self.assertRaisesRegex(reprise.Error, "compile_ir"):
            reprise.compile_ir("nonsense")
        with self.assertRaises(TypeError):
            reprise.compile_ir(TEXT)(1, 2)
        with self.assertRaises(TypeError):
            reprise.compile_ir(TEXT)(np.ones(3, np.float32))
        with self.assertRaises(reprise.Error):
            reprise.compile_ir(TEXT)(np.ones((2, 3), np.float32), np.ones((3, 4), np.complex64))

    def test_facts(self):
        self.assertIn("cpu", reprise.doctor())
        names = {row["name"] for row in reprise.ops()}
        self.assertLessEqual({"add", "conv2d", "softmax"}, names)
        self.assertIn("fused", reprise.backends())


if __name__ == "__main__":
    unittest.main()
