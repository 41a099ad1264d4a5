"""How the time of a training step grows with the number of GPUs: measured on few, predicted for many.

`measure` times a network and all-reduces on 1 and 2 GPUs; `python -m tools.scaling FILE` calibrates `model` with the
figures and tabulates more GPUs. `peer_norms` checks and times norms over the batches of several GPUs.
"""
