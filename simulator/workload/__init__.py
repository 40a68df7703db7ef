"""What comes: when, how long, of which class and tenant; made up, fitted to published figures, or recorded."""
