"""Writes what two Python encoders make of cases.json, as hexadecimal.

    python -m venv a && a/bin/pip install pysparkplug==0.6.1 && a/bin/python make.py pysparkplug
    python -m venv b && b/bin/pip install mqtt-spb-wrapper==2.1.2 && b/bin/python make.py mqtt_spb_wrapper

Each file holds one payload a case, with one metric named after the case's type; a case that the encoder refuses is
left out and listed under "refused". With `check FILE`, as in `make.py pysparkplug check ours.json`, the encoder's
own decoder reads the payloads of that file, and the values are compared.
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


def check(path):
    from pysparkplug import NBirth

    wrong = 0
    for kind, value, encoded in json.loads(pathlib.Path(path).read_text()):
        try:
            metric = NBirth.decode(bytes.fromhex(encoded)).metrics[0]
        except OverflowError:
            # It reads a negative Int8 or Int16 only when it is cut to 8 or 16 bits; we extend the sign to 32
            # bits, as the reference implementation does.
            if kind in ("Int8", "Int16") and value.startswith("-"):
                continue
            raise
        got = plain(metric.value)
        if got != value and not (isinstance(value, float) and abs(got - value) < 1e-6):
            wrong += 1
            print(f"{kind}: wrote {value!r}, read {got!r}")
    sys.exit(1 if wrong else 0)


def main():
    encoder = sys.argv[1]
    if sys.argv[2:3] == ["check"]:
        check(sys.argv[3])
    made, refused = [], []
    for kind, value in CASES["cases"]:
        try:
            made.append([kind, value, globals()[encoder](kind, native(kind, value)).hex()])
        except Exception as error:  # an encoder's own limits are part of the result
            refused.append([kind, value, type(error).__name__])
    out = {"encoder": encoder, "vectors": made, "refused": refused}
    (HERE / f"{encoder}.json").write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n")


main()
