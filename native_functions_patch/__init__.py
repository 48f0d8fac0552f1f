"""The patch that puts the ops into PyTorch core, and its check on an installed wheel."""
