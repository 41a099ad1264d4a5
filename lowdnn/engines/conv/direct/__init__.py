"""Direct convolution of any data type, in three directions: tiled for dense filters, by channels for grouped ones."""
