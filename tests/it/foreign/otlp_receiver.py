"""A collector's receiving end: OTLP over HTTP, decoded with OpenTelemetry's own protobuf package.

Prints its port, and then one JSON line a request that it could decode.
"""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


def attributes(pairs):
    return {pair.key: pair.value.string_value for pair in pairs}


def metrics(body):
    out = {"kind": "metrics", "metrics": {}}
    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        out["resource"] = attributes(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                out["metrics"][metric.name] = {
                    "kind": metric.WhichOneof("data"),
                    "unit": metric.unit,
                    "monotonic": getattr(data, "is_monotonic", None),
                    "points": [[attributes(p.attributes), p.as_double, p.time_unix_nano] for p in data.data_points],
                }
    return out, ExportMetricsServiceResponse()


def traces(body):
    out = {"kind": "traces", "spans": []}
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                out["spans"].append({
                    "name": span.name, "trace": span.trace_id.hex(), "span": span.span_id.hex(), "parent": span.parent_span_id.hex(),
                    "nanos": span.end_time_unix_nano - span.start_time_unix_nano, "attributes": attributes(span.attributes),
                })
    return out, ExportTraceServiceResponse()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        decode = {"/v1/metrics": metrics, "/v1/traces": traces}.get(self.path)
        if decode is None or self.headers["content-type"] != "application/x-protobuf":
            self.send_error(415)
            return
        out, answer = decode(body)
        print(json.dumps(out), flush=True)
        content = answer.SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_address[1], flush=True)
server.serve_forever()
