"""Headrace serves transformer models over gRPC with dynamic batching."""
