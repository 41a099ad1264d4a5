"""The engine of softmax and of its gradient."""
