"""The real model, over every process of the suite, through the command that a user types."""

import subprocess
import sys

import pytest


def ask(gateway: str, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "headrace.cli.main", "generate", "--address", gateway, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("class_name", ["realtime", "normal", "batch"])
def test_the_capital_of_france(smollm2: str, class_name: str) -> None:
    question = "What is the capital of France? Answer in one sentence."
    answer = ask(smollm2, "--chat", "--class", class_name, "--max-tokens", "32", question)
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout
    assert "stop" in answer.stderr


def test_a_seed_draws_the_same_answer_again(smollm2: str) -> None:
    answers = [
        ask(smollm2, "--temperature", "0.9", "--seed", seed, "--max-tokens", "24", "Water wheels are").stdout
        for seed in ("7", "7", "8")
    ]
    assert answers[0].strip()
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


def test_a_model_that_nobody_has(smollm2: str) -> None:
    answer = ask(smollm2, "--model", "nosuch", "Hello")
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: ")
    assert "nosuch" in answer.stderr
    assert "Traceback" not in answer.stderr
