"""What each step does. Nothing here knows Prefect."""
