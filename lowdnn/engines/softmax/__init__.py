"""The engine of softmax and its gradient."""
