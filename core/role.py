"""Who a process is to the others: what its certificate names, and what it may call."""

from enum import StrEnum


class Role(StrEnum):
    """The services, and those who call them from outside."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    EXECUTOR = "executor"
    PREPROCESS = "preprocess"
    COLLECTOR = "collector"
    CLIENT = "client"
    ADMIN = "admin"
    PROBER = "prober"
