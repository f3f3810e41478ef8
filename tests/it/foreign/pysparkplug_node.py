"""An edge node of pysparkplug: node `py-node`, device `py-dev`. usage: pysparkplug_node.py PORT

Prints one JSON line a metric it sends, then waits for its standard input to close.
"""
import json
import sys
import threading

import pysparkplug as psp

BASE = 1_790_000_000_000
T = psp.DataType
VALUES = [
    ("Int8", T.INT8, -12), ("Int16", T.INT16, -32768), ("Int32", T.INT32, -2147483648),
    ("Int64", T.INT64, -9007199254740993), ("UInt8", T.UINT8, 255), ("UInt16", T.UINT16, 65535),
    ("UInt32", T.UINT32, 4294967284), ("UInt64", T.UINT64, 18446744073709551615),
    ("Float", T.FLOAT, 1.5), ("Double", T.DOUBLE, -0.1), ("Boolean", T.BOOLEAN, False),
    ("String", T.STRING, "Pumpe Süd ≥ 5 bar"), ("Text", T.TEXT, ""), ("Null", T.DOUBLE, None),
]


def metrics(shift):
    return [
        psp.Metric(timestamp=BASE + shift + i, name=f"Types/{name}", datatype=kind, value=value)
        for i, (name, kind, value) in enumerate(VALUES)
    ]


def say(message, rows):
    for m in rows:
        print(json.dumps({"message": message, "name": m.name, "type": m.name.split("/")[-1],
                          "value": m.value, "timestamp": m.timestamp}), flush=True)


node = psp.EdgeNode("foreign", "py-node", [psp.Metric(timestamp=BASE, name="Up", datatype=T.BOOLEAN, value=True)])
birth = metrics(0)
node.register(psp.Device("py-dev", birth))
# The library is connected before it has sent its births; the next will is what it sees to when they are out.
born, setup_will = threading.Event(), node._setup_will
node._setup_will = lambda: (setup_will(), born.set())
node.connect("127.0.0.1", port=int(sys.argv[1]))
assert born.wait(60), "the node can't connect"
say("birth", birth)
data = metrics(1000)
node.update_device("py-dev", data)
say("data", data)
sys.stdin.read()
node.disconnect()
