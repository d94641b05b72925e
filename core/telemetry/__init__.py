"""neve's telemetry: a line of JSON a request, a trace of events, Prometheus metrics."""
