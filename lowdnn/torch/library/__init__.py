"""The operations of ``torch.ops.lowdnn``, a file for each family: public function, graphs, gradients."""
