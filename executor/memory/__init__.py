"""Memory for KV and payloads: address ranges reserved for the longest need, pages behind them as they are used."""
