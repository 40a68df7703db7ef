"""What headrace bench measures, and the peers it measures against."""
