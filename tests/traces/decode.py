"""What a collector was sent, by OpenTelemetry's own definitions: hexadecimal bodies of POST /v1/traces, one a line, on
standard input; prints a JSON list of spans, each with its resource's attributes and times in seconds."""

import json
import sys

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(of):
    return {entry.key: value(entry.value) for entry in of.attributes}


spans = []
for line in sys.stdin:
    request = ExportTraceServiceRequest()
    request.ParseFromString(bytes.fromhex(line.strip()))
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                spans.append(
                    {
                        "name": span.name,
                        "trace": span.trace_id.hex(),
                        "id": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "kind": span.kind,
                        "begin": span.start_time_unix_nano / 1e9,
                        "end": span.end_time_unix_nano / 1e9,
                        "error": span.status.code == 2,
                        "attributes": attributes(span),
                        "resource": attributes(resource.resource),
                    }
                )
print(json.dumps(spans))
