"""Run a big language model faster with any small model, across machines, losslessly."""
