"""The data plane's door: public contract, admission, deadlines, token streams. Never decides who runs next."""
