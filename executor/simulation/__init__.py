"""A cluster under a virtual clock: the scheduler that serves, with the latency model in the place of the hardware."""
