"""Encoders: padded batches of texts that the scheduler put together, one forward a padded length."""
