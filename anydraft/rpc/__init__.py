"""gRPC plumbing that both nodes and the SDK share; it knows nothing about models or text."""
