"""A graph in Reprise's text form, compiled and called with arrays of NumPy; no PyTorch is needed."""
import numpy as np

import reprise

f = reprise.compile_ir("""
graph "softplus of a line" (%0: f32[5, 3], %1: f32[2, 3], %2: f32[2]) {
  %3: f32[5, 2] = linear(%0, %1, %2)
  %4: f32[5, 2] = softplus(%3)
  return %4
}
""")
rng = np.random.default_rng(0)
x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((5, 3), (2, 3), (2,)))
y = f(x, w, b)
print(y)
assert np.allclose(y, np.log1p(np.exp(x @ w.T + b)), atol=1e-6)
print(len(reprise.ops()), "ops; backends:", ", ".join(reprise.backends()))
