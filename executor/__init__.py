"""The data plane's device side: engine, KV memory, step loop. Knows of QoS only the numbers it is handed."""
