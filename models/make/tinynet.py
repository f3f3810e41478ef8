"""Small feed-forward networks in plain numpy: train with Adam, write as ONNX.

Nothing here knows what a model is for. A network is a list of layers; each
layer has `f` (forward), `g` (gradient) and, when it has weights, `W` and `b`.
Randomness comes only from the generator that the caller passes in.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17  # tract is tested against 9 to 18
IR_VERSION = 9


class Conv:
    """1-D convolution over [batch, channel, time], zero padded to keep length / stride."""

    def __init__(self, rng, c_in, c_out, kernel, stride):
        fan_in = c_in * kernel
        self.W = (rng.standard_normal((c_out, fan_in)) * np.sqrt(2 / fan_in)).astype(np.float32)
        self.b = np.zeros(c_out, np.float32)
        self.kernel, self.stride, self.pad, self.c_in = kernel, stride, kernel // 2, c_in

    def f(self, x):
        padded = np.pad(x, ((0, 0), (0, 0), (self.pad, self.pad)))
        self.shape = padded.shape
        view = np.lib.stride_tricks.sliding_window_view(padded, self.kernel, 2)[:, :, :: self.stride]
        n, _, self.steps, _ = view.shape
        self.columns = view.transpose(0, 2, 1, 3).reshape(n * self.steps, -1)
        return (self.columns @ self.W.T + self.b).reshape(n, self.steps, -1).transpose(0, 2, 1)

    def g(self, d):
        n = d.shape[0]
        flat = d.transpose(0, 2, 1).reshape(n * self.steps, -1)
        self.gW, self.gb = flat.T @ self.columns, flat.sum(0)
        dc = (flat @ self.W).reshape(n, self.steps, self.c_in, self.kernel)
        dx = np.zeros(self.shape, np.float32)
        for j in range(self.kernel):
            end = j + self.stride * (self.steps - 1) + 1
            dx[:, :, j : end : self.stride] += dc[:, :, :, j].transpose(0, 2, 1)
        return dx[:, :, self.pad : self.shape[2] - self.pad]


class Dense:
    def __init__(self, rng, n_in, n_out, gain=2.0):
        self.W = (rng.standard_normal((n_out, n_in)) * np.sqrt(gain / n_in)).astype(np.float32)
        self.b = np.zeros(n_out, np.float32)

    def f(self, x):
        self.x = x
        return x @ self.W.T + self.b

    def g(self, d):
        self.gW, self.gb = d.T @ self.x, d.sum(0)
        return d @ self.W


class Relu:
    def f(self, x):
        self.mask = x > 0
        return x * self.mask

    def g(self, d):
        return d * self.mask


class Flatten:
    def f(self, x):
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def g(self, d):
        return d.reshape(self.shape)


def forward(net, x):
    for layer in net:
        x = layer.f(x)
    return x


def train(rng, net, inputs, gradient, epochs, rate=2e-3, batch=256):
    """Adam with a cosine schedule. `gradient(output, index)` gives dLoss/dOutput."""
    layers = [layer for layer in net if hasattr(layer, "W")]
    moments = {(i, k): [0.0, 0.0] for i in range(len(layers)) for k in "Wb"}
    step = 0
    for epoch in range(epochs):
        order = rng.permutation(len(inputs))
        eta = rate * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        for start in range(0, len(inputs), batch):
            index = order[start : start + batch]
            d = gradient(forward(net, inputs[index]), index).astype(np.float32)
            for layer in reversed(net):
                d = layer.g(d)
            step += 1
            for i, layer in enumerate(layers):
                for k in "Wb":
                    g, m = getattr(layer, "g" + k), moments[i, k]
                    m[0] = 0.9 * m[0] + 0.1 * g
                    m[1] = 0.999 * m[1] + 0.001 * g * g
                    scaled = (m[0] / (1 - 0.9**step)) / (np.sqrt(m[1] / (1 - 0.999**step)) + 1e-8)
                    getattr(layer, k)[...] -= eta * scaled


class Graph:
    """Collects nodes and initializers, then writes a checked ONNX file."""

    def __init__(self):
        self.nodes, self.initializers = [], []

    def constant(self, name, value):
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def weights(self, name, w, channel_axis):
        """An int8 weight with one scale per output channel, dequantised in the graph ("w8")."""
        axes = tuple(i for i in range(w.ndim) if i != channel_axis)
        scale = np.maximum(np.abs(w).max(axis=axes, keepdims=True) / 127, 1e-12).astype(np.float32)
        q = np.clip(np.rint(w / scale), -127, 127).astype(np.int8)
        inputs = [
            self.constant(name + "_q", q),
            self.constant(name + "_scale", scale.reshape(-1)),
            self.constant(name + "_zero", np.zeros(scale.size, np.int8)),
        ]
        return self.node("DequantizeLinear", inputs, name, axis=channel_axis)

    def layers(self, net, current, quantise):
        for i, layer in enumerate(net):
            out = f"layer{i}"
            if isinstance(layer, Conv):
                w = layer.W.reshape(-1, layer.c_in, layer.kernel)
                name = self.weights(out + ".w", w, 0) if quantise else self.constant(out + ".w", w)
                bias = self.constant(out + ".b", layer.b)
                current = self.node(
                    "Conv", [current, name, bias], out,
                    kernel_shape=[layer.kernel], strides=[layer.stride], pads=[layer.pad, layer.pad],
                )
            elif isinstance(layer, Dense):
                # MatMul + Add and not Gemm: tract lacks com.microsoft.QGemm, which
                # onnxruntime's quantiser would make of a Gemm.
                w = layer.W.T
                name = self.weights(out + ".w", w, 1) if quantise else self.constant(out + ".w", w)
                product = self.node("MatMul", [current, name], out + ".xw")
                current = self.node("Add", [product, self.constant(out + ".b", layer.b)], out)
            elif isinstance(layer, Relu):
                current = self.node("Relu", [current], out)
            else:
                current = self.node("Flatten", [current], out, axis=1)
        return current

    def save(self, path, name, inputs, outputs):
        infos = lambda items: [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", *shape]) for n, shape in items
        ]
        graph = helper.make_graph(self.nodes, name, infos(inputs), infos(outputs), self.initializers)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="sparkgate models/make"
        )
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model)
        onnx.save(model, path)


def parameters(net):
    return sum(layer.W.size + layer.b.size for layer in net if hasattr(layer, "W"))


def auc(normal, faulty):
    """Area under the ROC curve: the chance that a faulty window scores above a normal one."""
    scores = np.concatenate([normal, faulty])
    ranks = scores.argsort(kind="stable").argsort(kind="stable") + 1
    return float((ranks[len(normal) :].sum() - len(faulty) * (len(faulty) + 1) / 2) / (len(normal) * len(faulty)))


def roc_points(normal, faulty, false_alarm_rates=(0.001, 0.01, 0.05)):
    """Share of faulty windows found at fixed shares of false alarms."""
    return {rate: float((faulty > np.quantile(normal, 1 - rate)).mean()) for rate in false_alarm_rates}


def roc_rows(normal, by_fault):
    """Rows of a README's table: each fault's area and what is found at fixed false alarms."""
    rows = []
    for fault, faulty in by_fault.items():
        found = " / ".join(f"{v:.0%}" for v in roc_points(normal, faulty).values())
        rows.append(f"| {fault} | {auc(normal, faulty):.3f} | {found} |")
    return "\n".join(rows)
