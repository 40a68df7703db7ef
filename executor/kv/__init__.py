"""KV memory as sequences see it: blocks of tokens, who holds them, and each sequence's table of them."""
