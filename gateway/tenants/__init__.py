"""Who calls, what their key allows, and how much they may use."""
