"""Answers that were not there at their SLA: logs of what is made, and stores of what has been."""
