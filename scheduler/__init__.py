"""Who goes next: slack, queues, policies and the composition of each engine step."""
