"""The screen: is a prompt to be refused? Runs beside the other stages, in threads of its own."""
