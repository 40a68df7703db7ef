"""What every process does the same way: config, server, channel, status, telemetry."""
