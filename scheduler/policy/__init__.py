"""The decisions of the control plane: `machine.step(state, event, now)` returns commands. No clock, await or gRPC."""
