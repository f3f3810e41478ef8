"""A model's folder: files, hashes, golden rows. Golden outputs come from onnxruntime
with its optimiser off, so that they are the file's own arithmetic."""

import hashlib
import json
import os
import tempfile

import numpy as np
import onnx
import onnxruntime


class Artifact:
    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)

    def sha256(self, name):
        with open(self.path(name), "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()

    def run(self, name, feeds):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(self.path(name), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds)))

    def golden(self, name, file, tensor, rows, prepare, tolerance, channels):
        """`rows`: (label or None, raw window [channel, point]). `prepare` is the input
        preparation that the manifest declares; the gateway repeats it from `window`."""
        raw = np.stack([np.round(w, 4) for _, w in rows])
        outputs = self.run(file, {tensor: prepare(raw)})
        items = []
        for i, (label, _) in enumerate(rows):
            item = {"outputs": {k: [float(x) for x in np.atleast_1d(v[i])] for k, v in outputs.items()}}
            if label is not None:
                item["label"] = label
            item["window"] = {c: raw[i, j].tolist() for j, c in enumerate(channels)}
            items.append(item)
        body = {
            "source": f"onnxruntime {onnxruntime.__version__}, ORT_DISABLE_ALL, CPUExecutionProvider",
            "tolerance": {"absolute": tolerance, "relative": tolerance},
            "rows": items,
        }
        with open(self.path(name), "w", encoding="utf-8") as f:
            head = {k: body[k] for k in ("source", "tolerance")}
            f.write(json.dumps(head)[:-1] + ', "rows": [\n')
            f.write(",\n".join(json.dumps(item, separators=(",", ":")) for item in items))
            f.write("\n]}\n")


def reference(of, values):
    """A `[[reference]]` of the manifest: tenths of the values of a validation set."""
    edges = sorted({round(float(e), 6) for e in np.quantile(values, np.linspace(0.1, 0.9, 9))})
    shares = np.histogram(values, [-np.inf, *edges, np.inf])[0] / len(values)
    return f"[[reference]]\nof = {json.dumps(of)}\nbins = {edges}\nshares = {[round(float(s), 6) for s in shares]}\n"


SERVICE = """\
[objective]
latency_p95 = "50ms"
window = "10s"

[limits]
memory = "{memory}"
queue = 256
when_full = "drop-oldest"
batch = 64
batch_wait = "5ms"

{references}
[provenance]
licence = "Apache-2.0"
script = "models/make/{script}"
seed = {seed}
data = "{data}"
"""


def service(memory, references, script, seed, data):
    """The end of a sensor model's manifest: what it may cost and where it comes from."""
    return SERVICE.format(memory=memory, references="\n".join(references), script=script, seed=seed, data=data)


def quantise_static(source, target, tensor, calibration):
    """QDQ int8: signed activations, signed weights, one scale a channel."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.items = iter([{tensor: calibration[i : i + 32]} for i in range(0, len(calibration), 32)])

        def get_next(self):
            return next(self.items, None)

    with tempfile.TemporaryDirectory() as folder:
        raw = os.path.join(folder, "raw.onnx")
        quantize_static(
            source, raw, Reader(), quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, per_channel=True,
            op_types_to_quantize=["Conv", "MatMul"],
        )
        model = onnx.load(raw)
    save_plain(model, target)


def quantise_dynamic(source, target, keep=()):
    """int8 weights, activations quantised at run time: results change with the batch.
    The nodes named in `keep` stay in f32."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        raw = os.path.join(folder, "raw.onnx")
        quantize_dynamic(source, raw, weight_type=QuantType.QInt8, per_channel=True,
                         op_types_to_quantize=["Conv", "MatMul"], nodes_to_exclude=list(keep))
        model = onnx.load(raw)
    save_plain(model, target)


def save_plain(model, target):
    # onnxruntime's quantiser leaves symbolic shapes on inner values; they stop
    # tract from fixing the batch.
    del model.graph.value_info[:]
    onnx.save(model, target)
