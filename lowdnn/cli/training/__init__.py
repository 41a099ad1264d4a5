"""Training of a small convolutional network through pygraph: what ``lowdnn demo`` runs.

Every number between the images and the loss, and back to the parameters, is made by lowdnn's graphs. Each is built
once, keeps its tensors in the same device memory for the whole training, and runs at every step; the host hands over
the data and reads the loss.
"""
