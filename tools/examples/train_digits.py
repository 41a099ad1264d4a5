"""Trains a convolutional network on handwritten digits in mixed precision: what a framework does with lowdnn.

    python -m tools.examples.train_digits

The framework owns the memory and the graphs (``Session``). Each layer is a function that writes one pygraph for each
direction, such as conv_fprop, conv_wgrad and conv_dgrad (``lowdnn/cli/training/layers.py``); the optimiser's update is
one more (``sgd.py`` beside it). Graphs are built once. A step only executes them, in the handle's stream; the host
waits for the device where it reads the loss. ``lowdnn demo`` trains the same network and shows its engines and times.
"""

import numpy as np

from lowdnn import create_handle
from lowdnn.cli import digits
from lowdnn.cli.training.batches import Batches
from lowdnn.cli.training.inference import accuracy
from lowdnn.cli.training.network import Network, initial_parameters
from lowdnn.cli.training.session import Session
from lowdnn.cli.training.sgd import learning_rate
from lowdnn.enums import DataType


def main(device: str | None = None, steps: int = 70, batch: int = 64) -> None:
    """Trains on ``device`` (None: the GPU, or the emulated device where there is none) and prints what comes of it."""
    rng = np.random.default_rng(0)
    training, held_out = digits.load()
    with create_handle(device) as handle, Session(handle, DataType.HALF) as session:
        network = Network(session, batch, initial_parameters(rng))
        batches = Batches(session, training, batch, steps, rng)
        for step in range(steps):
            batches.load(step, network)
            network.set_rate(learning_rate(step, steps))
            network.train_step()
            if step % 10 == 0:
                print(f"step {step}: loss {network.loss():.3f}", flush=True)
        print(f"{accuracy(session, network, held_out):.1%} of {held_out.count} unseen digits are named correctly")


if __name__ == "__main__":
    main()
