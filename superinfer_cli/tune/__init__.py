"""`superinfer tune`: search the decay profile and the step planner on the simulated device."""
