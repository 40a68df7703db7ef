"""What only a GPU can show, in one run: memory, copies, misuse against the fake driver, rooflines. JSON comes out."""
