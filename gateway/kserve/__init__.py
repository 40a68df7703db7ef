"""The door for clients of KServe v2 (Open Inference Protocol): translates to the gateway's own calls and back."""
