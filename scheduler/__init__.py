"""The control plane: queues, batch forming, placement, membership. Sees numbers, never a tensor, token id or text."""
