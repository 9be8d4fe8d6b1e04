"""What runs when: the chain of stages, Prefect flows and deployments, the command line."""
