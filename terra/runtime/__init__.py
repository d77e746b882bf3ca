"""What runs while a step runs: locations, op interception, tensors, tracing, and the two runners."""
