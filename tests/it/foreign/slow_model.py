"""A model folder that answers what the shipped one does, far more than fifty times slower.

    slow_model.py SHIPPED_FOLDER OUT_FOLDER

Two convolutions over a stretched copy of the window are computed beside the score and added to it so faintly that the
golden rows hold; they depend on the input, so that no optimiser can take them out.
"""

import hashlib
import os
import shutil
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

source, out = sys.argv[1:3]
os.makedirs(out, exist_ok=True)
model = onnx.load(os.path.join(source, "model.onnx"))
graph = model.graph
rng = np.random.default_rng(1)


def constant(name, value):
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def node(op, inputs, output, **attributes):
    graph.node.append(helper.make_node(op, inputs, [output], name=output, **attributes))
    return output


for score in graph.node:
    if "score" in score.output:
        score.output[0] = "fast"
weights = constant("slow.w", (rng.standard_normal((64, 64, 9)) * 0.02).astype(np.float32))
x = node("Tile", ["window", constant("slow.times", np.array([1, 32, 16], np.int64))], "slow.wide")
for i in range(2):
    x = node("Conv", [x, weights], f"slow.conv{i}", kernel_shape=[9], pads=[4, 4])
    x = node("Tanh", [x], f"slow.tanh{i}")
mean = node("ReduceMean", [x], "slow.mean", axes=[1, 2], keepdims=0)
faint = node("Mul", [mean, constant("slow.faint", np.array(1e-9, np.float32))], "slow.faintly")
graph.node.append(helper.make_node("Add", ["fast", faint], ["score"], name="slow.add"))
del graph.value_info[:]
onnx.checker.check_model(model)
path = os.path.join(out, "model.onnx")
onnx.save(model, path)
shutil.copy(os.path.join(source, "golden.json"), out)

with open(os.path.join(source, "manifest.toml"), encoding="utf-8") as f:
    manifest = f.read()
start, end = manifest.index("# Integer arithmetic"), manifest.index("[window]")
manifest = manifest[:start] + manifest[end:]
with open(path, "rb") as f:
    digest = hashlib.sha256(f.read()).hexdigest()
known = manifest.split('sha256 = "')[1].split('"')[0]
for old, new in (
    (known, digest),
    ('version = "1.0.0"', 'version = "1.0.0-slow"'),
    ('latency_p95 = "50ms"\nwindow = "10s"', 'latency_p95 = "2ms"\nwindow = "2s"'),
    ('memory = "32MiB"', 'memory = "512MiB"'),
    ("batch = 64", "batch = 1"),
):
    assert old in manifest, old
    manifest = manifest.replace(old, new, 1)
with open(os.path.join(out, "manifest.toml"), "w", encoding="utf-8") as f:
    f.write(manifest)
