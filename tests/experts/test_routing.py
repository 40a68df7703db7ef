"""What is learnt of routing: topics come apart, a topic's experts are known, and layers that follow each other."""

import numpy as np

from headrace.executor.experts.routing import NO_TOPIC, RoutingHistory, Topics

LAYERS, EXPERTS, WIDTH = 3, 8, 16


def test_texts_of_one_kind_are_one_topic() -> None:
    draw, topics = np.random.default_rng(1), Topics()
    kinds = draw.normal(size=(3, WIDTH)).astype(np.float32)
    found = [{topics.of(kind + draw.normal(0, 0.1, WIDTH).astype(np.float32)) for _ in range(20)} for kind in kinds]
    assert sorted(map(len, found)) == [1, 1, 1]
    assert len(set.union(*found)) == 3 == topics.num_topics


def test_there_are_no_more_topics_than_may_be() -> None:
    draw, topics = np.random.default_rng(2), Topics(4)
    found = {topics.of(draw.normal(size=WIDTH).astype(np.float32)) for _ in range(50)}
    assert found == {0, 1, 2, 3}


def test_a_vector_that_says_nothing_has_no_topic() -> None:
    topics = Topics()
    topics.of(np.ones(WIDTH, np.float32))
    for vector in (None, np.zeros(WIDTH, np.float32), np.full(WIDTH, np.nan, np.float32), np.ones(3, np.float32)):
        assert topics.of(vector) == NO_TOPIC
    assert topics.num_topics == 1


def test_a_topic_learns_its_experts() -> None:
    history = RoutingHistory(LAYERS, EXPERTS, 2)
    asked = np.array([[0, 1], [0, 1], [6, 7], [6, 7]])
    for _ in range(50):
        for layer in range(LAYERS):
            counts = history.observe(layer, asked, np.array([0, 0, 1, 1], np.int32))
            assert counts.tolist() == [2, 2, 0, 0, 0, 0, 2, 2]
    assert set(np.argsort(-history.of_topic(2, 0))[:2].tolist()) == {0, 1}
    assert set(np.argsort(-history.of_topic(2, 1))[:2].tolist()) == {6, 7}
    assert history.of_topic(2, NO_TOPIC)[[0, 1, 6, 7]].tolist() == [0.25] * 4
    assert history.of_topic(0, 0)[[6, 7]].max() < 0.02


def test_a_new_topic_begins_as_everybody() -> None:
    history = RoutingHistory(LAYERS, EXPERTS, 2)
    history.observe(0, np.array([[3, 4]]), np.array([0], np.int32))
    assert history.of_topic(0, 1).tolist() == history.of_topic(0, NO_TOPIC).tolist() == [0, 0, 0, 0.5, 0.5, 0, 0, 0]


def test_the_layer_before_tells_the_next() -> None:
    """Expert e is followed by e + 1, whoever else is in the step."""
    draw, history = np.random.default_rng(3), RoutingHistory(LAYERS, EXPERTS, 1)
    for _ in range(40):
        first = draw.integers(0, EXPERTS, (5, 1))
        for layer in range(LAYERS):
            history.observe(layer, (first + layer) % EXPERTS)
    for expert in range(EXPERTS):
        counts = np.zeros(EXPERTS, np.float32)
        counts[expert] = 1
        assert int(history.after(0, counts).argmax()) == (expert + 1) % EXPERTS
        assert int(history.after(1, counts).argmax()) == (expert + 1) % EXPERTS


def test_nothing_known_is_no_share() -> None:
    history = RoutingHistory(LAYERS, EXPERTS, 1)
    assert history.after(0, np.ones(EXPERTS, np.float32)).tolist() == [0] * EXPERTS
    assert history.of_topic(0, 0).tolist() == [0] * EXPERTS


def test_old_counts_fade() -> None:
    history = RoutingHistory(1, EXPERTS, 1)
    for expert in (0, 1):
        for _ in range(1_000):
            history.observe(0, np.array([[expert]]))
    shares = history.of_topic(0, NO_TOPIC)
    assert shares[1] > 0.99 > 0.01 > shares[0]
