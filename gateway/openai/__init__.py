"""The door for OpenAI's HTTP clients: translates to the gateway's own calls and back."""
