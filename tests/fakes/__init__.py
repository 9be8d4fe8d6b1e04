"""Three small stages for tests of what runs stages: real processes, no framework in them."""
