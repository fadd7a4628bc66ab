"""gRPC between agents: the only place that imports grpc."""
