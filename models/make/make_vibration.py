#!/usr/bin/env python3
"""Train the two vibration auto-encoders on synthetic signals and write their artifacts.

    make_vibration.py ARTIFACTS_DIR

Writes vibration-ae (convolutions) and vibration-ae-mlp (its lighter fallback), each
with model.onnx (int8 weights), model.qdq.onnx (int8 arithmetic), manifest.toml,
golden.json, golden.qdq.json and README.md, and a dynamic int8 twin of the first for the
tests.  Seeded; about a minute on one core.
"""

import os
import sys

import numpy as np

from artifact import Artifact, quantise_dynamic, quantise_static, reference, service
from tinynet import Conv, Dense, Flatten, Graph, Relu, auc, forward, parameters, roc_rows, train

SEED = 20260711
POINTS, PERIOD_MS, HOP = 64, 100, 16
FAULTS = ["bearing", "imbalance", "looseness", "stuck"]


def signals(rng, n, fault=None):
    """Vibration velocity in mm/s, two axes: [n, 2, POINTS].

    Each window is made at its own sampling rate (1 to 20 Hz) and then resampled
    to PERIOD_MS by straight lines, as the gateway does with what devices report.
    """
    out = np.empty((n, 2, POINTS))
    grid = np.arange(POINTS) * PERIOD_MS / 1000
    for i in range(n):
        rate = rng.choice([1, 2, 5, 10, 10, 20])
        t = np.arange(-1, grid[-1] + 2 / rate, 1 / rate)
        f = rng.uniform(0.05, min(1.5, rate / 4))
        level = rng.uniform(0.3, 4.0, 2)
        load = rng.uniform(0.1, 1.2)
        phase, lag = rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 0.7) * np.pi
        wave = lambda k, p, a: a * np.sin(2 * np.pi * k * f * t + p)
        if fault == "imbalance":
            load = rng.uniform(2.0, 3.5)
        x = level[0] + wave(1, phase, load) + wave(2, phase * 1.7, 0.25 * load)
        y = level[1] + wave(1, phase + lag, 0.9 * load) + wave(2, phase * 1.7 + lag, 0.25 * load)
        if fault == "bearing":
            spacing, size = rng.uniform(0.5, 1.5), rng.uniform(0.8, 2.0)
            d = np.mod(t - rng.uniform(0, spacing), spacing)
            hit = size * np.exp(-d / 0.08) * (d < 0.4)
            x, y = x + hit, y + 0.8 * hit
        if fault == "looseness":
            a = rng.uniform(0.5, 1.0)
            x = x + wave(0.5, phase, a) * np.sign(wave(3.5, lag, 1.0))
        noise = rng.uniform(0.01, 0.1)
        x, y = x + noise * rng.standard_normal(len(t)), y + noise * rng.standard_normal(len(t))
        if fault == "stuck":
            j = rng.integers(len(t) // 4, len(t) // 2)
            (x if rng.random() < 0.5 else y)[j:] = x[j]
        out[i, 0], out[i, 1] = np.interp(grid, t, x), np.interp(grid, t, y)
    return out


def normalise(windows):
    """What the manifest declares: each channel less its own mean, in units of 1 mm/s."""
    return (windows - windows.mean(axis=2, keepdims=True)).astype(np.float32)


def score(net, x):
    flat = x.reshape(len(x), -1)
    return ((forward(net, x) - flat) ** 2).mean(1)


def export(net, path, name, quantise):
    g = Graph()
    flat = g.layers(net, "window", quantise)
    recon = g.node("Reshape", [flat, g.constant("shape", np.array([-1, 2, POINTS], np.int64))], "recon")
    error = g.node("Sub", [recon, "window"], "error")
    square = g.node("Mul", [error, error], "square")
    g.node("ReduceMean", [square], "score", axes=[1, 2], keepdims=0)
    g.save(path, name, [("window", [2, POINTS])], [("score", [])])


MANIFEST = """\
# Written by models/make/make_vibration.py; edit the script, not this file.
name = "{name}"
version = "{version}"
title = "Vibration of two axes, anomaly by reconstruction error"
demonstration = true
{lighter}
[file]
path = "model.onnx"
sha256 = "{sha_w8}"
arithmetic = "w8"
golden = "golden.json"

# Integer arithmetic pays on onnxruntime (2x at a batch of 64); on tract it costs.
[[variant]]
backends = ["ort:tensorrt"]
path = "model.qdq.onnx"
sha256 = "{sha_qdq}"
arithmetic = "qdq-int8"
golden = "golden.qdq.json"

[window]
points = {points}
hop = {hop}
period = "{period}ms"
resample = "linear"
max_gap = "5s"
hold = "1500ms"
max_age = "30s"

[[input]]
metric = "Vibration/X"
datatype = "number"
unit = "mm/s"
range = [-1e4, 1e4]

[[input]]
metric = "Vibration/Y"
datatype = "number"
unit = "mm/s"
range = [-1e4, 1e4]

[tensor]
name = "window"
kind = "window"
center = "mean"
scale = 1.0

[[output]]
name = "score"
meaning = "anomaly"
unit = "(mm/s)^2, mean squared reconstruction error"
range = [0.0, 1e8]

[verdict]
output = "score"
normal = "normal"
levels = [
  {{ label = "suspect", at = {suspect:.4f} }},
  {{ label = "anomaly", at = {anomaly:.4f} }},
]

{service}"""

README = """\
# {name} (demonstration)

{what}

- **Made by** `models/make/make_vibration.py`, seed {seed}, numpy training on synthetic signals; {params} parameters.
- **Data**: two-axis vibration velocity (mm/s) at 1 to 20 Hz, resampled to {period} ms, made by the script. No real
  machine was measured: the figures below say how well the network separates faults that the same script invents,
  and nothing about a real machine. Retrain on your own normal running before acting on it.
- **Input**: {points} points of `Vibration/X` and `Vibration/Y` every {period} ms, each less its mean over the window.
- **Output**: `score`, mean squared reconstruction error in (mm/s)^2; high means unlike the training signals.
- **Verdict**: `normal`, `suspect` from the 99th, `anomaly` from 1.5 times the 99.9th percentile of held-out normal windows.
- **Arithmetic**: `model.onnx` keeps int8 weights and computes in f32 (w8). `model.qdq.onnx` computes in int8 and is
  declared for TensorRT; it loads and agrees on tract and onnxruntime's CPU provider too.

## ROC on held-out synthetic windows (w8 file, onnxruntime, {held_out} normal, {held_out_faulty} of each fault)
| fault | AUC | found at 0.1 % / 1 % / 5 % false alarms |
|---|---|---|
{roc}

w8 against f32, mean absolute difference of the score: {w8_diff:.2e}. Files: w8 {size_w8} bytes, int8 {size_qdq} bytes.
"""


def main(out):
    rng = np.random.default_rng(SEED)
    training, raw_held_out = normalise(signals(rng, 20000)), signals(rng, 3000)
    held_out = normalise(raw_held_out)
    raw_normal = signals(rng, 8)
    raw_faulty = {k: signals(rng, 600, k) for k in FAULTS}
    faulty = {k: normalise(v) for k, v in raw_faulty.items()}
    nets = {
        "vibration-ae": (
            "1-D convolutional auto-encoder over windows of two vibration axes.",
            [Conv(rng, 2, 16, 7, 2), Relu(), Conv(rng, 16, 32, 5, 2), Relu(), Flatten(),
             Dense(rng, 512, 24, 1.0), Dense(rng, 24, 2 * POINTS, 1.0)],
            40,
        ),
        "vibration-ae-mlp": (
            "Fully connected auto-encoder: the lighter model that takes over when `vibration-ae` misses its latency objective.",
            [Flatten(), Dense(rng, 2 * POINTS, 48), Relu(), Dense(rng, 48, 16, 1.0),
             Dense(rng, 16, 48), Relu(), Dense(rng, 48, 2 * POINTS, 1.0)],
            60,
        ),
    }
    for name, (what, net, epochs) in nets.items():
        target = training.reshape(len(training), -1)
        scale = 32 / target.shape[1]
        train(rng, net, training, lambda y, i: (y - target[i]) * scale / len(i), epochs)
        art = Artifact(os.path.join(out, name))
        export(net, art.path("model.onnx"), name, quantise=True)
        export(net, art.path("float.onnx"), name, quantise=False)
        quantise_static(art.path("float.onnx"), art.path("model.qdq.onnx"), "window", training[:512])
        if name == "vibration-ae":
            vectors = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "vectors")
            quantise_dynamic(art.path("float.onnx"), os.path.join(vectors, f"{name}.dynamic.onnx"))
        os.remove(art.path("float.onnx"))

        run = lambda file, x: art.run(file, {"window": x})["score"]
        normal = run("model.onnx", held_out)
        by_fault = {k: run("model.onnx", v) for k, v in faulty.items()}
        suspect = float(np.quantile(normal, 0.99))
        anomaly = float(1.5 * np.quantile(normal, 0.999))
        # A labelled row must not sit on a threshold, or rounding would decide it.
        rows = [("normal" if run("model.onnx", normalise(w[None]))[0] < 0.7 * suspect else None, w) for w in raw_normal[:6]]
        for k in FAULTS:
            for i in np.argsort(by_fault[k])[[-5, -300]]:
                rows.append(("anomaly" if by_fault[k][i] > 1.3 * anomaly else None, raw_faulty[k][i]))
        for file, golden, tolerance in (("model.onnx", "golden.json", 1e-4), ("model.qdq.onnx", "golden.qdq.json", 0.1)):
            art.golden(golden, file, "window", rows, normalise, tolerance, channels=["Vibration/X", "Vibration/Y"])
        references = [reference("score", normal)] + [
            reference(f"Vibration/{axis}:std", raw_held_out[:, i].std(axis=1)) for i, axis in enumerate("XY")]
        art.write("manifest.toml", MANIFEST.format(
            name=name, version="1.0.0", lighter='lighter = "vibration-ae-mlp"\n' if name == "vibration-ae" else "",
            sha_w8=art.sha256("model.onnx"), sha_qdq=art.sha256("model.qdq.onnx"), points=POINTS, hop=HOP,
            period=PERIOD_MS, suspect=suspect, anomaly=anomaly,
            service=service("32MiB", references, "make_vibration.py", SEED,
                            "synthetic two-axis vibration velocity made by the script; no machine was measured")))
        art.write("README.md", README.format(
            name=name, what=what, seed=SEED, params=f"{parameters(net):,}", period=PERIOD_MS, points=POINTS,
            held_out=len(held_out), held_out_faulty=600,
            roc=roc_rows(normal, by_fault),
            w8_diff=float(np.abs(normal - score(net, held_out)).mean()),
            size_w8=os.path.getsize(art.path("model.onnx")), size_qdq=os.path.getsize(art.path("model.qdq.onnx"))))
        print(name, f"mse {normal.mean():.5f} p99 {suspect:.5f} anomaly {anomaly:.5f}",
              {k: round(auc(normal, s), 3) for k, s in by_fault.items()}, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
