"""All services wired together: in one process, or as processes under a supervisor."""
