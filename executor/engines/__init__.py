"""Engines run models; all of them behind protocol.Engine, reached by registry.load_engine."""
