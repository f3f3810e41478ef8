"""Writes what two Python encoders make of cases.json, as hexadecimal.

    python -m venv a && a/bin/pip install pysparkplug==0.6.1 && a/bin/python make.py pysparkplug
    python -m venv b && b/bin/pip install mqtt-spb-wrapper==2.1.2 && b/bin/python make.py mqtt_spb_wrapper

Each file holds one payload a case, with one metric named after the case's type; a case that the encoder refuses is
left out and listed under "refused". With `check FILE`, as in `make.py pysparkplug check ours.json`, the encoder's
own decoder reads the payloads of that file, and the values are compared; both read all that they have types for.
"""

import datetime
import json
import pathlib
import sys
import uuid

HERE = pathlib.Path(__file__).parent
CASES = json.loads((HERE / "cases.json").read_text())
INTEGERS = ("Int", "UInt", "DateTime")


def native(kind, value):
    """A case's value as Python has it."""
    if kind.endswith("Array"):
        return [native(kind[: -len("Array")], it) for it in value]
    if kind.startswith(INTEGERS):
        return int(value)
    if kind in ("Bytes", "File"):
        return bytes.fromhex(value)
    return value


def utc(ms):
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(milliseconds=ms)


def plain(value):
    """A decoded value in the form that cases.json has."""
    if isinstance(value, (list, tuple)):
        return [plain(it) for it in value]
    if isinstance(value, datetime.datetime):
        return str(round((value - utc(0)) / datetime.timedelta(milliseconds=1)))
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def pysparkplug(kind, value):
    import re

    from pysparkplug import DataType, Metric, NBirth

    name = re.sub(r"Array$", "_ARRAY", kind).upper()
    if kind == "DateTime":
        value = utc(value)
    if kind == "DateTimeArray":
        value = tuple(utc(it) for it in value)
    elif isinstance(value, list):
        value = tuple(value)
    metric = Metric(timestamp=CASES["timestamp"], name=kind, datatype=DataType[name], value=value, alias=7)
    return NBirth(timestamp=CASES["timestamp"], seq=CASES["seq"], metrics=(metric,)).encode()


def mqtt_spb_wrapper(kind, value):
    from mqtt_spb_wrapper.spb_protobuf import MetricDataType, addMetric
    from mqtt_spb_wrapper.spb_protobuf.sparkplug_b_pb2 import Payload

    payload = Payload()
    payload.timestamp = CASES["timestamp"]
    addMetric(payload, kind, 7, getattr(MetricDataType, kind), value, CASES["timestamp"])
    if not payload.metrics or payload.metrics[0].WhichOneof("value") is None:
        raise ValueError("no value written")
    payload.seq = CASES["seq"]
    return payload.SerializeToString()


def read_pysparkplug(encoded):
    from pysparkplug import NBirth

    return NBirth.decode(encoded).metrics[0].value


def read_mqtt_spb_wrapper(encoded):
    from mqtt_spb_wrapper.spb_protobuf import getMetricValue
    from mqtt_spb_wrapper.spb_protobuf.sparkplug_b_pb2 import Payload

    payload = Payload()
    payload.ParseFromString(encoded)
    return getMetricValue(payload.metrics[0])


def structured():
    """A DataSet, a template with its definition, and nested properties, by Google's encoder."""
    from mqtt_spb_wrapper.spb_protobuf import MetricDataType
    from mqtt_spb_wrapper.spb_protobuf.sparkplug_b_pb2 import Payload

    def metric(name, kind):
        payload = Payload(timestamp=CASES["timestamp"], seq=CASES["seq"])
        one = payload.metrics.add(name=name, alias=7, timestamp=CASES["timestamp"], datatype=kind)
        return payload, one

    dataset, one = metric("DataSet", MetricDataType.DataSet)
    table = one.dataset_value
    table.num_of_columns = 3
    table.columns.extend(["n", "s", "b"])
    table.types.extend([MetricDataType.Int32, MetricDataType.String, MetricDataType.Boolean])
    for n, s, b in ((-1, "a", True), (2, "", False)):
        row = table.rows.add()
        row.elements.add(int_value=n & 0xFFFFFFFF)
        row.elements.add(string_value=s)
        row.elements.add(boolean_value=b)

    template, one = metric("Template", MetricDataType.Template)
    of = one.template_value
    of.version, of.template_ref, of.is_definition = "1.0", "Motor", False
    of.metrics.add(name="rpm", datatype=MetricDataType.Double, double_value=12.5)
    of.metrics.add(name="on", datatype=MetricDataType.Boolean, boolean_value=False)
    of.parameters.add(name="limit", type=MetricDataType.Int32, int_value=-5 & 0xFFFFFFFF)

    properties, one = metric("Properties", MetricDataType.Double)
    one.double_value = 1
    one.properties.keys.extend(["Quality", "unit"])
    one.properties.values.add(type=MetricDataType.Int32, int_value=500)
    one.properties.values.add(type=MetricDataType.String, string_value="°C")
    return {
        "dataset": dataset.SerializeToString().hex(),
        "template": template.SerializeToString().hex(),
        "properties": properties.SerializeToString().hex(),
    }


def check(encoder, path):
    wrong = 0
    for kind, value, encoded in json.loads(pathlib.Path(path).read_text()):
        if encoder == "mqtt_spb_wrapper" and kind.endswith("Array"):
            continue  # it knows no arrays
        try:
            got = plain(globals()["read_" + encoder](bytes.fromhex(encoded)))
        except OverflowError:
            # pysparkplug reads a negative Int8 or Int16 only when it is cut to 8 or 16 bits; we extend the sign to
            # 32 bits, as the reference implementation does.
            if kind in ("Int8", "Int16") and value.startswith("-"):
                continue
            raise
        if encoder == "mqtt_spb_wrapper" and isinstance(value, str) and value.startswith("-"):
            # It does not extend signs: -1 is 2^32 - 1 for it, or 2^64 - 1.
            got = str(int(got) - 2 ** (64 if kind == "Int64" else 32))
        if got != value and not (isinstance(value, float) and abs(got - value) < 1e-6):
            wrong += 1
            print(f"{kind}: wrote {value!r}, read {got!r}")
    sys.exit(1 if wrong else 0)


def main():
    encoder = sys.argv[1]
    if sys.argv[2:3] == ["check"]:
        check(encoder, sys.argv[3])
    made, refused = [], []
    for kind, value in CASES["cases"]:
        try:
            made.append([kind, value, globals()[encoder](kind, native(kind, value)).hex()])
        except Exception as error:  # an encoder's own limits are part of the result
            refused.append([kind, value, type(error).__name__])
    out = {"encoder": encoder, "vectors": made, "refused": refused}
    if encoder == "mqtt_spb_wrapper":
        out["structured"] = structured()
    (HERE / f"{encoder}.json").write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n")


main()
