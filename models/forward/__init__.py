"""What every forward pass of a model needs: tokens, batches, a device, unit vectors."""
