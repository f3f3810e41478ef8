#!/usr/bin/env python3
"""Time the text model beside PyPI's onnxruntime, in one run, one thread each, and print ratios.

    bench_text.py TEXT_DIR SPARKGATE [SECONDS]

TEXT_DIR is what build_text.sh made, SPARKGATE a release binary. PyPI's onnxruntime runs the same
file with its optimiser on and inputs of exactly 64 and 128 tokens. The gateway runs it with what is
built in (tract) and with the library of that same package. Both take turns, three times; the ratio
is that of the medians. Run it in the environment of requirements.txt on a machine that is quiet.
"""

import glob
import json
import os
import subprocess
import sys
import time

import numpy as np
import onnxruntime

ROUNDS = 3
TOKENS = [64, 128]
TARGET = {"tract:cpu": 2.4, "ort:cpu": 1.1}


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def reference(model, tokens, seconds):
    """Times of one text in ms."""
    rng = np.random.default_rng(0)
    feeds = {"input_ids": rng.integers(1000, 20000, (1, tokens)), "attention_mask": np.ones((1, tokens), np.int64)}
    for _ in range(5):
        model.run(None, feeds)
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        model.run(None, feeds)
        times.append((time.perf_counter() - begun) * 1e3)
    return times


def gateway(program, folder, library):
    """Medians in ms by backend and tokens."""
    run = subprocess.run([program, "models", "bench", folder, "-o", "json"], check=True, stdout=subprocess.PIPE,
                         env={**os.environ, "ORT_DYLIB_PATH": library})
    found = {}
    for report in json.loads(run.stdout):
        for model in report["models"]:
            for backend in model["backends"]:
                for timing in backend["timings"]:
                    found[backend["backend"], timing["tokens"]] = timing["p50_us"] / 1e3
    return found


def main(folder, program, seconds=3.0):
    capi = os.path.join(os.path.dirname(onnxruntime.__file__), "capi")
    library = glob.glob(os.path.join(capi, "libonnxruntime.so*"))[0]
    model = session(os.path.join(folder, "model.onnx"))
    base, own = {n: [] for n in TOKENS}, {}
    for _ in range(ROUNDS):
        for tokens in TOKENS:
            base[tokens] += reference(model, tokens, float(seconds))
        for key, millis in gateway(program, folder, library).items():
            own.setdefault(key, []).append(millis)
    print(f"onnxruntime {onnxruntime.__version__} of PyPI, one thread; medians of {ROUNDS} rounds, ms a text")
    for tokens in TOKENS:
        theirs = float(np.median(base[tokens]))
        print(f"{tokens:4} tokens  onnxruntime {theirs:8.2f}")
        for backend, target in TARGET.items():
            if (backend, tokens) in own:
                ours = float(np.median(own[backend, tokens]))
                print(f"             {backend:<11} {ours:8.2f}  {ours / theirs:5.2f}x  (target {target}x)")
            else:
                print(f"             {backend:<11} did not run")


if __name__ == "__main__":
    main(*sys.argv[1:])
