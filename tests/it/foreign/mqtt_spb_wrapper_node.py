"""A device of mqtt-spb-wrapper behind its own edge node: `spb-node`/`spb-dev`. usage: mqtt_spb_wrapper_node.py PORT

Prints one JSON line a metric it sends, then waits for its standard input to close.
"""
import contextlib
import json
import struct
import sys

from mqtt_spb_wrapper import MqttSpbEntityDevice, MqttSpbEntityEdgeNode
from mqtt_spb_wrapper.spb_base import MetricDataType as T
from mqtt_spb_wrapper.spb_protobuf import getDdataPayload

BASE = 1_790_000_000_000
VALUES = [
    ("Int8", T.Int8, -12), ("Int32", T.Int32, -87), ("Int64", T.Int64, -9007199254740993),
    ("UInt32", T.UInt32, 4294967284), ("UInt64", T.UInt64, 9007199254740993), ("Float", T.Float, 1.5),
    ("Double", T.Double, -0.1), ("Boolean", T.Boolean, False), ("String", T.String, "Pumpe Süd ≥ 5 bar"),
    ("DateTime", T.DateTime, BASE + 7), ("Bytes", T.Bytes, bytes([0, 255, 16])),
]
TABLE = {"Temperature": [23.5, 22.0], "Status": ["ok", "warm"]}


def fill(device, shift):
    rows = []
    for i, (name, kind, value) in enumerate(VALUES):
        device.data.set_value(f"Types/{name}", value, timestamp=BASE + shift + i, spb_data_type=kind)
        shown = list(value) if isinstance(value, bytes) else value
        rows.append({"name": f"Types/{name}", "type": name, "value": shown,
                     "timestamp": BASE + shift + i})
    device.data.set_value("Types/DataSet", TABLE, timestamp=BASE + shift, spb_data_type=T.DataSet)
    return rows


ARRAYS = [
    ("Int8Array", 22, struct.pack("<2b", -23, 123), [-23, 123]),
    ("Int32Array", 24, struct.pack("<2i", -1, 315338746), [-1, 315338746]),
    ("UInt64Array", 29, struct.pack("<2Q", 5, 2**64 - 1), [5, "18446744073709551615"]),
    ("DoubleArray", 31, struct.pack("<2d", 12.5, -0.1), [12.5, -0.1]),
    ("BooleanArray", 32, bytes([12, 0, 0, 0, 0x34, 0xD0]), [b == "1" for b in "001101001101"]),
    ("StringArray", 33, "ABC\0Süd\0".encode(), ["ABC", "Süd"]),
    ("DateTimeArray", 34, struct.pack("<2Q", 1256102875335, 1656107875000), [1256102875335, 1656107875000]),
]


def arrays(device, shift):
    """A DDATA with arrays, which the library's own classes don't make, by its protobuf classes."""
    payload = getDdataPayload()
    rows = []
    for i, (name, code, packed, value) in enumerate(ARRAYS):
        metric = payload.metrics.add()
        metric.name, metric.datatype, metric.timestamp = f"Types/{name}", code, BASE + shift + i
        metric.bytes_value = packed
        rows.append({"name": metric.name, "type": name, "value": value, "timestamp": metric.timestamp})
    device._mqtt_payload_publish("spBv1.0/foreign/DDATA/spb-node/spb-dev", bytearray(payload.SerializeToString()))
    return rows


with contextlib.redirect_stdout(sys.stderr):
    node = MqttSpbEntityEdgeNode("foreign", "spb-node")
    node.attributes.set_value("maker", "acme")
    assert node.connect("127.0.0.1", int(sys.argv[1]), timeout=60), "node can't connect"
    node.publish_birth()
    device = MqttSpbEntityDevice("foreign", "spb-node", "spb-dev")
    birth = fill(device, 0)
    assert device.connect("127.0.0.1", int(sys.argv[1]), timeout=60), "device can't connect"
    device.publish_birth()
    data = fill(device, 1000)
    device.publish_data()
    data += arrays(device, 2000)
for message, rows in (("birth", birth), ("data", data)):
    for row in rows:
        print(json.dumps({"message": message, **row}), flush=True)
sys.stdin.read()
with contextlib.redirect_stdout(sys.stderr):
    device.disconnect()
    node.disconnect()
