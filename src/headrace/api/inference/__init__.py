"""Generated from protos/ by tools/protos.py; do not edit."""
